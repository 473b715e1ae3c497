#!/bin/sh
# Fetches the outside programs that tests/external asks, beside the checkout and not installed, so that no service is
# started: Prometheus with promtool, and clients for Node by the versions of node/package-lock.json, without their
# install scripts. Node and a browser are installed where they are missing. Does nothing where all is there already.
set -eu
cd "$(dirname "$0")/../.."
tools=.cache/external

if ! command -v promtool >/dev/null 2>&1 && ! [ -x "$tools/usr/bin/promtool" ]; then
    command -v apt-get >/dev/null 2>&1 || { echo "promtool is missing: install Prometheus with your system's package manager"; exit 1; }
    mkdir -p "$tools"
    echo "== fetching promtool (Debian's prometheus package) into $tools"
    if [ "$(id -u)" = 0 ]; then apt-get update -qq; fi
    (cd "$tools" && apt-get download -qq prometheus && dpkg-deb -x prometheus_*.deb . && rm -f prometheus_*.deb)
fi

if ! command -v npm >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || { echo "node and npm are missing: install them with your system's package manager"; exit 1; }
    echo "== installing Debian's nodejs and npm"
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends nodejs npm >/dev/null
fi
mkdir -p "$tools/node"
cp tests/external/node/*.mjs "$tools/node/"
if ! cmp -s tests/external/node/package-lock.json "$tools/node/fetched"; then
    echo "== fetching clients for Node into $tools/node"
    cp tests/external/node/package.json tests/external/node/package-lock.json "$tools/node/"
    npm clean-install --prefix "$tools/node" --ignore-scripts --no-audit --no-fund --silent
    cp "$tools/node/package-lock.json" "$tools/node/fetched"
fi

if ! command -v chromium >/dev/null 2>&1 && ! command -v chromium-browser >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || { echo "Chromium is missing: install it with your system's package manager"; exit 1; }
    echo "== installing Debian's chromium"
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends chromium >/dev/null
fi
