#!/bin/sh
# Trains a small Llama on text found on this machine and shows what it learned. Called by `make demo` after packages and build.
#   DTRUN_DEMO_SHORT=1   a few steps only, in another folder (what .ci/run does)
#   DTRUN_TEXT="PATHS"   other files and folders than those of machine_text.sh
cd "$(dirname "$0")/.." || exit 2
bin=${B:-build}/bin
run=runs/demo
extra=""
if [ -n "${DTRUN_DEMO_SHORT:-}" ]; then
    run=runs/demo-short
    rm -rf $run
    extra="--output_dir $run --set data.tokenizer=$run/tok --set data.train=$run/data/train-*.bin --set data.val=$run/data/val-*.bin
           --set training.max_steps=40 --set training.warmup_steps=5 --set training.eval_every_n_steps=20 --set training.eval_batches=8
           --set checkpointing.save_every_n_steps=20 --set logging.log_every_n_steps=10"
fi
data=$run/data
# Paths have no blanks: they are those of machine_text.sh, or the user's.
text=${DTRUN_TEXT:-$(sh scripts/machine_text.sh small)}
sources() { sed -n '/"sources"/,/\]/p' "$@" | sed -n 's/^ *"\(.*\)",\{0,1\}$/\1/p'; }
if [ ! -e $data/train-00000.bin ]; then
    echo "demo: C headers, Python's library, licences; files are held out by a hash of"
    echo "demo: their path, 4 % of the text; neither tokenizer nor model learns from them"
    # shellcheck disable=SC2086
    $bin/dtdata tokenize --tokenizer bytes --val 0.04 -o $run/bytes --overwrite $text || exit 1
    sources $run/bytes/train-*.bin.json | xargs -x -s 1000000 $bin/dtdata train-tokenizer -v 2048 --special "<|endoftext|>" --overwrite -o $run/tok || exit 1
    # shellcheck disable=SC2086
    $bin/dtdata tokenize --tokenizer $run/tok --val 0.04 -o $data $text || exit 1
fi
command="$bin/dtrun --nproc_per_node=2 train configs/demo.json"
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
sed -n '/gzip\|4-gram/s/^/demo: held-out files, bits per byte: /p' $run/baseline.txt
echo "demo: to go on, and to look closer:"
printf '  %s \\\n      --set training.max_steps=10000\n' "$command"
printf '  %-44s %s\n' "$bin/train --generate $run --prompt \"int main\"" "" \
    "$bin/train --plan configs/demo.json" "what it needs, before it runs" \
    "$bin/dtckpt list $run" "checkpoints" \
    "$run/metrics.jsonl" "every logged step" | sed 's/ *$//'
cat <<EOF
demo: with text of your own, a folder of which some files are held out:
  text=FOLDER
  $bin/dtdata train-tokenizer -v 2048 --special '<|endoftext|>' \\
      -o own/tok \$text
  $bin/dtdata tokenize --tokenizer own/tok --val 0.05 -o own/shards \$text
  $bin/dtrun --nproc_per_node=2 train configs/demo.json \\
      --output_dir own/run --set data.tokenizer=own/tok \\
      --set 'data.train=own/shards/train-*.bin' \\
      --set 'data.val=own/shards/val-*.bin'
  $bin/train --generate own/run --prompt "Once upon"
EOF
