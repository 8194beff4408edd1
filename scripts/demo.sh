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
# What every machine with a C compiler has, some 10 MB; the licences are read twice under two names on some systems, which does no harm.
text="/usr/share/common-licenses"
for f in /usr/include/*.h /usr/include/linux /usr/include/asm-generic /usr/include/*-linux-gnu/sys /usr/include/*-linux-gnu/bits /usr/include/*-linux-gnu/asm; do
    [ -e "$f" ] && text="$text $f"
done
data=$run/data
if [ ! -e $data/train-00000.bin ]; then
    echo "demo: making shards of bytes from C headers and licence texts; one file in twenty is held out"
    # shellcheck disable=SC2086
    $bin/dtdata tokenize --tokenizer bytes --holdout 0.05 -o $data $text || exit 1
fi
command="$bin/dtrun --nproc_per_node=$ranks train configs/demo.json --output_dir $run --set data.train=$data/train-*.bin --set data.val=$data/val-*.bin"
echo "demo: $command"
# shellcheck disable=SC2086
$command $extra || exit $?
echo
echo "demo: what the model writes after \"#include <\":"
$bin/dtckpt sample $run "#include <" 400 || exit 1
echo
$bin/dtdata baseline --train "$data/train-*.bin" --val "$data/val-*.bin" >$run/baseline.txt || exit 1
loss=$(sed -n 's/.*"val_loss": *\([0-9.e+-]*\).*/\1/p' $run/metrics.jsonl | tail -n 1)
awk -v loss="$loss" 'BEGIN { printf "demo: held-out files, bits per byte: model %.3f\n", loss / log(2) }'
sed 's/^/demo: held-out files, bits per byte: /' $run/baseline.txt
echo "demo: to go on, and to look closer:"
echo "  $command --set training.max_steps=10000"
echo "  $bin/train --plan configs/demo.json       bytes and traffic before anything runs"
echo "  $bin/dtckpt list $run                     checkpoints;  dtckpt hash $run: the same for every strategy"
echo "  $bin/dtckpt sample $run \"int main\"         more text;  $run/metrics.jsonl: every logged step"
