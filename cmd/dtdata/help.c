/* See the header. Each line from two spaces on stands in docs/man/dtdata.1 as well. */
#include "cmd/dtdata/help.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* `names` are commands with a blank between two; `common` is what the first screen shows of their options. */
static const struct {
    const char *names, *what, *common, *rest;
} commands[] = {
    {"tokenize",
     "  tokenize PATH...    text, .jsonl, .csv and .tsv files, each also as .gz or\n"
     "                      .zst, folders of them, or - for standard input ->\n"
     "                      DIR/train-00000.bin ... and val-00000.bin ...\n",
     "      -o DIR              where the shards go [shards]\n"
     "      --tokenizer PATH    tokenizer.json or its folder; bytes: one id per byte,\n"
     "                          0 after each file or record [bytes]\n"
     "      --val FRACTION      share of the text held out as whole files for val\n"
     "                          [0.05; 0 when there is only one file]; also --holdout\n"
     "      --overwrite         replace shards that are in DIR\n",
     "      --end TOKEN         what ends each file or record [eos_token of\n"
     "                          tokenizer_config.json]\n"
     "      --shard_tokens N    most tokens per shard [100000000]\n"
     "      --format KIND       text, jsonl, json, csv or tsv [by names of files]\n"
     "      --text_key KEY      where the text is in records [text]; --text_column too\n"
     "      --encoding_errors replace  U+FFFD for what is not UTF-8 [refuse]\n"
     "      --on_bad_record skip  count records that are broken and go on [refuse]\n"
     "      --threads N         how many work at the same time [all cores]\n"
     "  Rows for a classifier, in DIR/train-00000.safetensors ...:\n"
     "      --label_column KEY  where the label is; --label_key too\n"
     "      --text_pair_column KEY  where a second text is; --text_pair_key too\n"
     "      --labels A,B,...    the classes in order [all that are there, sorted]\n"
     "      --regression        labels are numbers\n"
     "      --max_length N      most ids of a row\n"
     "      --val FRACTION      share of rows held out, by a hash of their text [0]\n"},
    {"train-tokenizer",
     "  train-tokenizer TEXT...\n"
     "                      text -> DIR/tokenizer.json and tokenizer_config.json\n",
     "      -o DIR              where they go [tokenizer]\n"
     "      -v N, --vocab_size N  tokens in all [32768]\n"
     "      --special TOKEN     a special token; also repeated [those of the type]\n",
     "      --type TYPE         bpe, wordpiece or unigram [bpe]\n"
     "      --pattern NAME      bpe: gpt2, llama3, qwen2, o200k, sentencepiece, or a\n"
     "                          regular expression [gpt2]\n"
     "      --min_frequency N   merge no pair that is rarer [0]\n"
     "      --limit_alphabet N  most characters, of the most frequent ones [all]\n"
     "      --keep_case         wordpiece: do not make letters small\n"
     "      --memory SIZE       most memory; the rest goes to DIR.counts [2G]\n"
     "      --save_every SIZE   text between two saves of the counts [500M]\n"
     "      --threads --text_key --text_column --overwrite  as tokenize has them\n"},
    {"encode decode", "  encode, decode      text on standard input to ids, or ids to text\n",
     "      --tokenizer PATH\n", ""},
    {"inspect", "  inspect FILE...     header, counts, tokenizer, hash and first texts of shards\n", "",
     "      --tokenizer PATH    [the one that their JSON names]\n"
     "      --samples N         how many texts [2]\n"
     "      --end TOKEN         what ends documents where no JSON says it [eos_token\n"
     "                          of the tokenizer]\n"
     "      --format nanogpt    ids without a header, of nanoGPT\n"},
    {"convert-tokenizer",
     "  convert-tokenizer IN OUT\n"
     "                      a .model of SentencePiece, or ranks of tiktoken, to OUT,\n"
     "                      a tokenizer.json that gives the same ids, or a folder\n"
     "                      that is there, which gets it\n",
     "",
     "      --bos, --eos        .model: its begin and end tokens around each text\n"
     "      --pattern NAME      ranks: how text is split: gpt2, cl100k, o200k, llama3,\n"
     "                          or a regular expression\n"
     "      --special NAME=ID,...  ranks: special tokens\n"},
    {"baseline",
     "  baseline --train GLOB --val GLOB\n"
     "                      bits per byte of gzip and of n-gram models on val\n",
     "", ""},
};

/* Whether `name` is one of `names`. */
static bool is_one_of(const char *name, const char *names)
{
    size_t size = strlen(name);
    for (const char *at = names; size > 0 && (at = strstr(at, name)) != NULL; at += size) {
        if ((at == names || at[-1] == ' ') && (at[size] == ' ' || at[size] == 0)) {
            return true;
        }
    }
    return false;
}

bool help_print(const char *command, bool all)
{
    bool found = false;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (command == NULL || is_one_of(command, commands[i].names)) {
            (void)printf("%s%s%s%s", found ? "" : "usage: dtdata COMMAND [options] PATH...\n\n", commands[i].what,
                         commands[i].common, all || command != NULL ? commands[i].rest : "");
            found = true;
        }
    }
    if (found && command == NULL) {
        (void)fputs("\n"
                    "  COMMAND --help      all options of a command; --help=all: of all commands\n"
                    "  --version           version of dtdata\n",
                    stdout);
    }
    if (found) {
        (void)fputs("\nExit codes: 0 done, 1 bad or unreadable data, disk full, 2 wrong use.\n", stdout);
    }
    return found;
}
