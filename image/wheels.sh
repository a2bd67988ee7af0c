#!/bin/sh
# Fails unless every pinned package of the image has a wheel for each machine and Python: the image's build compiles
# nothing, and takes no package without a hash.
#   PIP  the pip that asks (default: .venv/bin/pip)
set -eu
cd "$(dirname "$0")/.."
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT

for machine in x86_64 aarch64; do
    for python in 3.11 3.12 3.13 3.14; do
        for file in requirements.txt image/tools.txt; do
            "${PIP:-.venv/bin/pip}" download --quiet --no-deps --require-hashes --only-binary :all: \
                --implementation cp --python-version "$python" --platform "manylinux_2_28_$machine" \
                --platform "manylinux_2_17_$machine" --platform "manylinux2014_$machine" \
                --dest "$wheels/$machine-$python" --requirement "$file" || {
                echo "$file: a package has no wheel for Python $python on $machine, as pip says above; pin another version" >&2
                exit 1
            }
        done
    done
done
