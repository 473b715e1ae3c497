// Dark or light as it was chosen here, before anything is drawn; the system's where nothing was. No module, so that it runs
// first.
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("gridsched.theme");
  } catch {
    // a browser that keeps nothing for pages
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
