#!/bin/sh
# Fetches the outside programs that tests/external asks: promtool, unpacked beside the checkout and not installed, so that
# no service is started. Does nothing where promtool is on the PATH or was fetched before.
set -eu
cd "$(dirname "$0")/../.."
tools=.cache/external
if command -v promtool >/dev/null 2>&1 || [ -x "$tools/usr/bin/promtool" ]; then exit 0; fi
command -v apt-get >/dev/null 2>&1 || { echo "promtool is missing: install Prometheus with your system's package manager"; exit 1; }
mkdir -p "$tools"
echo "== fetching promtool (Debian's prometheus package) into $tools"
if [ "$(id -u)" = 0 ]; then apt-get update -qq; fi
(cd "$tools" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb)
