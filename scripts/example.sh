#!/bin/sh
# Makes the data of an example in configs/ in runs/NAME, and trains it on two ranks.   scripts/example.sh NAME [OPTIONS OF train]
#   gpt2-text, llama-text   from text of this machine and a tokenizer of its own; DTRUN_TEXT names other files and folders
#   minilm-spam             MiniLM says whether a short message is spam (scripts/setup.sh --peers --models --examples)
#   smollm2-text            SmolLM2-135M goes on with C headers, its perplexity on English beside it (the same)
#   resnet-fashion-mnist    images (scripts/setup.sh --examples)
# Each command is shown before it runs. runs/ is made in the current folder. What is there is used again.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
case ${B:-build} in /*) bin=$B/bin ;; *) bin=$root/${B:-build}/bin ;; esac
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dtrun
name=${1:-}
run=runs/$name
job=$root/configs/$name.json
[ -n "$name" ] && shift

fail() {
    echo "example.sh: $*" >&2
    exit 2
}
show() {
    line="example: $*"
    [ ${#line} -le 400 ] || line="$(printf %.400s "$line") ..." # of many files
    echo "$line"
    "$@" || exit $?
}
# The folder of weights, as the job names it.
start() {
    from=${DTRUN_MODELS:-$cache/models}/$1
    [ -f "$from/config.json" ] || fail "no weights at $from; run: scripts/setup.sh --peers --models"
    mkdir -p "$run"
    [ -e "$run/start" ] || show ln -s "$from" "$run/start"
}
# Paths have no blanks: they are those of machine_text.sh, or the user's.
text() {
    echo "${DTRUN_TEXT:-$(sh "$root/scripts/machine_text.sh" "$@")}"
}

case $name in
gpt2-text | llama-text)
    # shellcheck disable=SC2046
    [ -e "$run/tokenizer/tokenizer.json" ] || show "$bin/dtdata" train-tokenizer -v 8192 --special "<|endoftext|>" -o "$run/tokenizer" $(text)
    # shellcheck disable=SC2046
    [ -e "$run/data/train-00000.bin" ] || show "$bin/dtdata" tokenize --tokenizer "$run/tokenizer" --holdout 0.05 -o "$run/data" $(text)
    ;;
minilm-spam)
    messages=${DTRUN_EXAMPLES:-$cache/examples}/sms.tsv
    [ -f "$messages" ] || fail "no messages at $messages; run: scripts/setup.sh --examples"
    start minilm
    [ -e "$run/data/train-00000.safetensors" ] ||
        show "$bin/dtdata" tokenize --tokenizer "$run/start" --label_column label --max_length 128 --val 0.1 -o "$run/data" "$messages"
    ;;
smollm2-text)
    start smollm2
    # shellcheck disable=SC2046
    [ -e "$run/data/train-00000.bin" ] || show "$bin/dtdata" tokenize --tokenizer "$run/start" --holdout 0.05 -o "$run/data" $(text code)
    # shellcheck disable=SC2046
    [ -e "$run/english/train-00000.bin" ] || show "$bin/dtdata" tokenize --tokenizer "$run/start" -o "$run/english" $(sh "$root/scripts/machine_text.sh" english)
    echo "example: before: headers, then English"
    show "$bin/train" --evaluate "$run/start" "$job" "$@"
    show "$bin/train" --evaluate "$run/start" "$job" --set "data.val=$run/english/train-*.bin" "$@"
    ;;
resnet-fashion-mnist)
    [ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] || fail "no images; run: scripts/setup.sh --examples"
    ;;
*)
    sed -n '2,7s/^# //p' "$0" >&2
    exit 2
    ;;
esac

show "$bin/dtrun" --nproc_per_node=2 train "$job" "$@"

case $name in
*-text) next="$bin/train --generate $run --prompt \"#include <\"" ;;
*) next="$bin/train --evaluate $run $job" ;;
esac
if [ "$name" = smollm2-text ]; then
    echo "example: after: headers, then English"
    show "$bin/train" --evaluate "$run" "$job" "$@"
    show "$bin/train" --evaluate "$run" "$job" --set "data.val=$run/english/train-*.bin" "$@"
fi
echo "example: figures are in $run/metrics.jsonl; next: $next"
