#!/bin/sh
# Trains a small GPT on text found on this machine and shows what it learned. Called by `make demo` after packages and build.
#   DTRUN_DEMO_SHORT=1   a few steps only, in another folder (what .ci/run does)
cd "$(dirname "$0")/.." || exit 2
bin=${B:-build}/bin
ranks=2
run=runs/demo
extra=""
if [ -n "${DTRUN_DEMO_SHORT:-}" ]; then
    run=runs/demo-short
    extra="--set training.max_steps=40 --set training.warmup_steps=5 --set training.eval_every_n_steps=20 --set training.eval_batches=8
           --set checkpointing.save_every_n_steps=20 --set logging.log_every_n_steps=10"
    rm -rf $run
fi
text=$(sh scripts/machine_text.sh)
data=$run/data
sources() { sed -n '/"sources"/,/\]/p' "$@" | sed -n 's/^ *"\(\/.*\)",\{0,1\}$/\1/p'; }
if [ ! -e $data/train-00000.bin ]; then
    echo "demo: C headers and licence texts; one file in twenty is held out"
    # shellcheck disable=SC2086
    $bin/dtdata tokenize --tokenizer bytes --holdout 0.05 -o $run/bytes --overwrite $text || exit 1
    echo "demo: training a tokenizer on the others"
    sources $run/bytes/train-*.bin.json | xargs $bin/dtdata train-tokenizer -v 2048 --special "<|endoftext|>" --overwrite -o $run/tokenizer || exit 1
    # shellcheck disable=SC2086
    $bin/dtdata tokenize --tokenizer $run/tokenizer --holdout 0.05 -o $data $text || exit 1
fi
command="$bin/dtrun --nproc_per_node=$ranks train configs/demo.json --output_dir $run --set data.tokenizer=$run/tokenizer --set data.train=$data/train-*.bin --set data.val=$data/val-*.bin"
echo "demo: $command"
# shellcheck disable=SC2086
$command $extra || exit $?
echo
awk -f scripts/loss.awk -v svg=$run/loss.svg $run/metrics.jsonl
echo "demo: that is also $run/loss.svg"
echo
echo "demo: what the model writes after \"#include <\":"
$bin/train --generate $run --prompt "#include <" --max_new_tokens 120 --temperature 0.8 || exit 1
echo
$bin/dtdata baseline --train "$run/bytes/train-*.bin" --val "$run/bytes/val-*.bin" >$run/baseline.txt || exit 1
bits=$(sed -n 's/.*"val_bits_per_byte": *\([0-9.e+-]*\).*/\1/p' $run/metrics.jsonl | tail -n 1)
printf 'demo: held-out files, bits per byte: model %.3f\n' "$bits"
sed 's/^/demo: held-out files, bits per byte: /' $run/baseline.txt
echo "demo: to go on, and to look closer:"
echo "  $command --set training.max_steps=10000"
echo "  $bin/train --plan configs/demo.json       bytes and traffic before anything runs"
echo "  $bin/dtckpt list $run                     checkpoints;  dtckpt hash $run: the same for every strategy"
echo "  $bin/train --generate $run --prompt \"int main\"      more text;  $run/metrics.jsonl: every logged step"
echo "demo: with text of your own:"
echo "  $bin/dtdata train-tokenizer -v 8192 --special '<|endoftext|>' -o tok TEXT..."
echo "  $bin/dtdata tokenize --tokenizer tok -o shards TEXT..."
echo "  and a job as configs/demo.json, with \"data\": {\"tokenizer\": \"tok\", \"train\": \"shards/train-*.bin\", ...}"
