/* See the header. */
#include "cmd/train/options.h"

#include "base/size.h"
#include "base/text.h"
#include "cmd/train/answer.h"
#include "worker/engine/world.h"
#include "worker/job/job.h"
#include "worker/model/presets.h"

#include <getopt.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = "usage: train [options] job.json\n"
                            "Trains the model a job file describes. Alone it is rank 0 of 1; dtrun starts\n"
                            "one per rank: dtrun --nproc-per-node 4 train job.json\n"
                            "\n"
                            "  --plan             print memory by purpose and what else is known before the\n"
                            "                     first step, then end: 0 it fits, 2 it does not\n"
                            "  --json             with --plan: one JSON object; with --generate: one per row\n"
                            "  --nproc N          with --plan: for N ranks (default: WORLD_SIZE, else 1)\n"
                            "  --gpus N           with --plan: what the job would take on N GPUs that are\n"
                            "                     elsewhere: memory, messages, bytes, time of a step\n"
                            "  --gpu NAME         with --gpus: the kind of GPU [H100]; list: print them\n"
                            "  --gpus_per_node N  with --gpus: GPUs of a host [8]\n"
                            "  --disk RATE        with --gpus: bytes per second of a host's disks, e.g. 12GB,\n"
                            "                     for offload to files [what a short test gives here]\n"
                            "  --strategy NAMES   with --gpus: all, or some with commas between; a line each,\n"
                            "                     and which one to take [the job's own]\n"
                            "  --find_batch_size  with --plan: the largest training.batch_size_per_gpu that\n"
                            "                     fits 95 % of the memory, with --gpus that of such a GPU\n"
                            "  --print-config     print every value of the job and where it comes from\n"
                            "  --set KEY=VALUE    change a value of the job, e.g. training.seed=7; again for\n"
                            "                     more\n"
                            "  --config FILE      the job file, for those who are used to it; beside one, a\n"
                            "                     file of DeepSpeed, Hugging Face, accelerate or Lightning\n"
                            "  --mode NAME        short for --set training.strategy=NAME\n"
                            "  --output_dir DIR   short for --set output_dir=DIR\n"
                            "  --seed N           short for --set training.seed=N\n"
                            "  --model_name NAME  short for --set model.name=NAME\n"
                            "  --deepspeed FILE   short for --set deepspeed=FILE, a DeepSpeed configuration\n"
                            "  --accept KEY,...   keys that may differ from the checkpoint's, e.g.\n"
                            "                     learning_rate or data.train; short for\n"
                            "                     --set checkpointing.accept=KEY,...\n"
                            "  --fresh            begin anew; earlier checkpoints are set aside as *.old-N\n"
                            "  --evaluate PATH    print the numbers of data.val with the weights of a\n"
                            "                     checkpoint, a run's folder or a Hugging Face folder;\n"
                            "                     nothing is trained\n"
                            "  --generate PATH    continue prompts with a trained model: a checkpoint, a\n"
                            "                     run's folder or a Hugging Face folder; the job file may be\n"
                            "                     left out, of it the section generation counts\n"
                            "  --chat PATH        answer turns from standard input, one a line, by the chat\n"
                            "                     template beside the tokenizer; PATH as for --generate\n"
                            "  --system TEXT      with --chat: the system message, before all turns\n"
                            "  --prompt TEXT      a prompt, for the tokenizer beside the weights; again for\n"
                            "                     more\n"
                            "  --prompt_ids IDS   a prompt as ids, 5,17,3; @FILE: one on each line of a file\n"
                            "  --max_new_tokens N short for --set generation.max_new_tokens=N\n"
                            "  --temperature X    short for --set generation.temperature=X\n"
                            "  --batch_size N     prompts that are continued at a time [8], or texts of\n"
                            "                     --embed [32]\n"
                            "  --embed PATH       print a vector for each text, one JSON object on a line\n"
                            "                     each; PATH as for --generate. A sentence-transformers\n"
                            "                     folder says how to pool; otherwise the mean of tokens\n"
                            "  --texts FILE       with --embed: a text on each line; of .jsonl an object with\n"
                            "                     the member text [standard input]\n"
                            "  --pooling NAMES    with --embed: cls, max, mean, mean_sqrt_len_tokens,\n"
                            "                     weightedmean, lasttoken, or some with commas between\n"
                            "  --normalize        with --embed: make vectors of length 1\n"
                            "  --list-models      print all models and presets\n"
                            "  --list-strategies  print all strategies and their other names; with a job\n"
                            "                     file, also those that it registers\n"
                            "  --explain KEY      print what a key does here: the job's, DeepSpeed's, FSDP's,\n"
                            "                     Hugging Face's, accelerate's, Lightning's\n"
                            "  --convert FILE     print a file of these, or of gpt-neox, as a job; what did\n"
                            "                     not map goes to standard error\n"
                            "  -o FILE            with --convert: write the job there; with --embed: the\n"
                            "                     vectors, as a matrix for NumPy if its name ends with .npy\n"
                            "  --schema           print the JSON Schema of job files\n"
                            "  --help, --version\n"
                            "\n"
                            "Exit codes: 0 done, 2 wrong option or job (nothing was started), 75 stopped on\n"
                            "request and saved, 100 another try fails the same way, 111 another try may work.\n";

enum {
    OPT_PLAN = 256,
    OPT_JSON,
    OPT_NPROC,
    OPT_GPUS,
    OPT_GPU,
    OPT_GPUS_PER_NODE,
    OPT_DISK,
    OPT_STRATEGY,
    OPT_FIND,
    OPT_PRINT,
    OPT_SET,
    OPT_CONFIG,
    OPT_MODE,
    OPT_OUTPUT,
    OPT_SEED,
    OPT_MODEL,
    OPT_DEEPSPEED,
    OPT_ACCEPT,
    OPT_FRESH,
    OPT_EVALUATE,
    OPT_GENERATE,
    OPT_CHAT,
    OPT_SYSTEM,
    OPT_PROMPT,
    OPT_PROMPT_IDS,
    OPT_NEW_TOKENS,
    OPT_TEMPERATURE,
    OPT_BATCH_SIZE,
    OPT_EMBED,
    OPT_TEXTS,
    OPT_POOLING,
    OPT_NORMALIZE,
    OPT_LIST,
    OPT_EXPLAIN,
    OPT_CONVERT,
    OPT_MODELS,
    OPT_SCHEMA,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"plan", no_argument, NULL, OPT_PLAN},
    {"json", no_argument, NULL, OPT_JSON},
    {"nproc", required_argument, NULL, OPT_NPROC},
    {"gpus", required_argument, NULL, OPT_GPUS},
    {"gpu", required_argument, NULL, OPT_GPU},
    {"gpus_per_node", required_argument, NULL, OPT_GPUS_PER_NODE},
    {"gpus-per-node", required_argument, NULL, OPT_GPUS_PER_NODE},
    {"disk", required_argument, NULL, OPT_DISK},
    {"strategy", required_argument, NULL, OPT_STRATEGY},
    {"find_batch_size", no_argument, NULL, OPT_FIND},
    {"find-batch-size", no_argument, NULL, OPT_FIND},
    {"print-config", no_argument, NULL, OPT_PRINT},
    {"print_config", no_argument, NULL, OPT_PRINT},
    {"set", required_argument, NULL, OPT_SET},
    {"config", required_argument, NULL, OPT_CONFIG},
    {"mode", required_argument, NULL, OPT_MODE},
    {"output_dir", required_argument, NULL, OPT_OUTPUT},
    {"output-dir", required_argument, NULL, OPT_OUTPUT},
    {"seed", required_argument, NULL, OPT_SEED},
    {"model_name", required_argument, NULL, OPT_MODEL},
    {"model-name", required_argument, NULL, OPT_MODEL},
    {"deepspeed", required_argument, NULL, OPT_DEEPSPEED},
    {"accept", required_argument, NULL, OPT_ACCEPT},
    {"fresh", no_argument, NULL, OPT_FRESH},
    {"evaluate", required_argument, NULL, OPT_EVALUATE},
    {"generate", required_argument, NULL, OPT_GENERATE},
    {"chat", required_argument, NULL, OPT_CHAT},
    {"system", required_argument, NULL, OPT_SYSTEM},
    {"prompt", required_argument, NULL, OPT_PROMPT},
    {"prompt_ids", required_argument, NULL, OPT_PROMPT_IDS},
    {"prompt-ids", required_argument, NULL, OPT_PROMPT_IDS},
    {"max_new_tokens", required_argument, NULL, OPT_NEW_TOKENS},
    {"max-new-tokens", required_argument, NULL, OPT_NEW_TOKENS},
    {"temperature", required_argument, NULL, OPT_TEMPERATURE},
    {"batch_size", required_argument, NULL, OPT_BATCH_SIZE},
    {"batch-size", required_argument, NULL, OPT_BATCH_SIZE},
    {"embed", required_argument, NULL, OPT_EMBED},
    {"texts", required_argument, NULL, OPT_TEXTS},
    {"pooling", required_argument, NULL, OPT_POOLING},
    {"normalize", no_argument, NULL, OPT_NORMALIZE},
    {"list-models", no_argument, NULL, OPT_MODELS},
    {"list_models", no_argument, NULL, OPT_MODELS},
    {"list-strategies", no_argument, NULL, OPT_LIST},
    {"list_strategies", no_argument, NULL, OPT_LIST},
    {"explain", required_argument, NULL, OPT_EXPLAIN},
    {"convert", required_argument, NULL, OPT_CONVERT},
    {"schema", no_argument, NULL, OPT_SCHEMA},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

void train_add_set(struct train_options *o, const char *option, const char *key, const char *value)
{
    o->set_option = dt_realloc(o->set_option, (size_t)(o->job.set_count + 1) * sizeof *o->set_option);
    o->set_option[o->job.set_count] = option;
    o->job.set_option = o->set_option;
    o->set = dt_realloc(o->set, (size_t)(o->job.set_count + 1) * sizeof *o->set);
    o->set[o->job.set_count++] = dt_format("%s%s%s", key, *key ? "=" : "", value);
    o->job.set = o->set;
}

/* Given again, it adds to what it said before. */
static void add_accepted(struct train_options *o, const char *keys)
{
    int i = 0;
    while (i < o->job.set_count && (o->set_option[i] == NULL || strcmp(o->set_option[i], "--accept") != 0)) {
        i++;
    }
    if (i == o->job.set_count) {
        train_add_set(o, "--accept", "checkpointing.accept", keys);
        return;
    }
    char *all = dt_format("%s,%s", o->set[i], keys);
    free((void *)(uintptr_t)o->set[i]);
    o->set[i] = all;
}

void train_free_options(struct train_options *o)
{
    for (int i = 0; i < o->job.set_count; i++) {
        free((void *)(uintptr_t)o->set[i]);
    }
    free(o->set);
    free(o->set_option);
    free(o->config);
    free(o->generate.prompts);
}

/* The seed of draws, where nothing is trained. */
static void seed_draws(struct train_options *o)
{
    for (int i = 0; i < o->job.set_count; i++) {
        if (o->set_option[i] != NULL && strcmp(o->set_option[i], "--seed") == 0) {
            char *all = dt_format("generation%s", strchr(o->set[i], '.'));
            free((void *)(uintptr_t)o->set[i]);
            o->set[i] = all;
        }
    }
}

static int add_job(struct train_options *o, const char *path)
{
    if (o->job.path) {
        dt_text_say(stderr, "train: %s: one job file, please, and %s is given already; see train --help", path,
                    o->job.path);
        return -1;
    }
    o->job.path = path;
    return 0;
}

static void add_config(struct train_options *o, const char *path)
{
    o->config = dt_realloc(o->config, (size_t)(o->job.config_count + 1) * sizeof *o->config);
    o->config[o->job.config_count++] = path;
    o->job.config = o->config;
}

/* getopt's own lines know neither the nearest name nor our grammar. */
static void say_wrong(bool lacks_value, const char *word)
{
    const char *names[sizeof long_options / sizeof *long_options];
    char name[64];
    size_t count = 0;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    const char *stem = name + strspn(name, "-");
    for (const struct option *x = long_options; x->name; x++) {
        if (strcmp(x->name, stem) == 0) {
            dt_text_say(stderr, "train: %s: %s; see train --help", name,
                        x->has_arg == no_argument ? "takes no value" : "needs a value");
            return;
        }
        names[count++] = x->name;
    }
    const char *near = lacks_value ? NULL : dt_text_nearest(stem, names, count);
    dt_text_say(stderr, "train: %s: %s%s%s", name,
                near          ? "unknown option; did you mean --"
                : lacks_value ? "needs a value"
                              : "unknown option",
                near ? near : "; see train --help", near ? "?" : "");
}

/* The value of an option that is a number of ranks. */
static bool read_ranks(const char *option, int *out)
{
    long long number = 0;
    if (!dt_parse_int64(optarg, &number) || number < 1 || number > 1 << 20) {
        fprintf(stderr, "train: %s: %s: must be a whole number from 1 to %d; example: %s 4\n", option, optarg, 1 << 20,
                option);
        return false;
    }
    *out = (int)number;
    return true;
}

/* --embed takes no job, and no other option that does something. */
static bool check_embed(struct train_options *o)
{
    const char *beside = o->generate.path != NULL ? "--generate, --chat"
                         : o->generate.count > 0  ? "--prompt, --prompt_ids"
                         : o->plan                ? "--plan"
                         : o->print_config        ? "--print-config"
                         : o->evaluate != NULL    ? "--evaluate"
                         : o->job.path != NULL    ? "a job file, which it does not read"
                         : o->job.set_count > 0   ? "values of a job, which it does not read"
                         : o->job.fresh           ? "--fresh"
                                                  : NULL;
    o->embed.output = o->question.output;
    o->embed.batch_size = o->batch_size;
    return train_check_embed(&o->embed, beside);
}

static int refuse(const char *why)
{
    fprintf(stderr, "train: %s\n", why);
    return DT_EXIT_USAGE;
}

/* What --plan, --gpus and what belongs to them need of each other. */
static const char *wrong_plan(const struct train_options *o)
{
    const struct train_estimate *e = &o->estimate;
    bool of_gpus = e->gpu != NULL || e->gpus_per_node > 0 || e->disk_bytes_per_s > 0 || e->strategies != NULL;
    return o->find_batch_size && (!o->plan || e->strategies != NULL || o->evaluate != NULL)
               ? "--find_batch_size: only with --plan, and without --evaluate and --strategy (another strategy: --mode "
                 "NAME)"
           : e->gpus > 0 && (!o->plan || o->nproc > 0) ? "--gpus: only with --plan, and without --nproc"
           : e->gpus == 0 && of_gpus
               ? "--gpu, --gpus_per_node, --disk, --strategy: only with --plan --gpus N (the strategy of a run: --mode "
                 "NAME)"
           : o->nproc > 0 && !o->plan
               ? "--nproc: only with --plan; ranks are started by dtrun --nproc_per_node=N train job.json"
           : o->json && o->generate.path == NULL && !o->plan ? "--json: only with --plan or --generate"
                                                             : NULL;
}

static int print(void (*write)(struct dt_text *out))
{
    struct dt_text text;
    dt_text_init(&text);
    write(&text);
    fputs(dt_text_str(&text), stdout);
    dt_text_clear(&text);
    return DT_EXIT_DONE;
}

/* A kind of GPU on a line. */
static void list_gpus(struct dt_text *out)
{
    struct dt_gpu_sheet none;
    struct dt_text known;
    dt_text_init(&known);
    (void)dt_gpu_sheet("", &none, &known);
    for (const char *p = dt_text_str(&known); *p != 0; p += strspn(p, ", ")) {
        size_t size = strcspn(p, ",");
        dt_text_printf(out, "%.*s\n", (int)size, p);
        p += size;
    }
    dt_text_clear(&known);
}

/* After the last option: the words that remain, and what does not go together. */
static int finish(struct train_options *o, int argc, char **argv)
{
    for (; optind < argc; optind++) {
        if (add_job(o, argv[optind]) != 0) {
            return DT_EXIT_USAGE;
        }
    }
    if (o->estimate.gpu != NULL && strcmp(o->estimate.gpu, "list") == 0) {
        return print(list_gpus);
    }
    if (o->question.convert != NULL && add_job(o, o->question.convert) != 0) {
        return DT_EXIT_USAGE;
    }
    if (o->job.path == NULL && o->job.config_count > 0) { /* the first one is the job */
        o->job.path = *o->job.config++;
        o->job.config_count--;
    }
    if (o->question.output != NULL && o->question.convert == NULL && o->embed.path == NULL) {
        return refuse("-o: only with --convert or --embed");
    }
    if (o->question.list_strategies || o->question.explain != NULL || o->question.convert != NULL) {
        return train_answer(&o->question, &o->job);
    }
    if (!check_embed(o)) {
        return DT_EXIT_USAGE;
    }
    if (o->embed.path != NULL) {
        return -1;
    }
    o->generate.json = o->json;
    o->generate.batch_size = o->batch_size;
    if (!train_check_generate(&o->generate, o->plan           ? "--plan"
                                            : o->print_config ? "--print-config"
                                            : o->evaluate     ? "--evaluate"
                                                              : NULL)) {
        return DT_EXIT_USAGE;
    }
    if (o->generate.path != NULL) {
        seed_draws(o);
    }
    o->estimate.arguments = &o->job;
    const char *wrong = wrong_plan(o);
    if (wrong != NULL) {
        return refuse(wrong);
    }
    if (o->job.path == NULL && o->generate.path == NULL) {
        return refuse(o->evaluate ? "no job file, which says what to evaluate (data.val); a run's folder has its "
                                    "job.json; see train --help"
                                  : "no job file; see train --help");
    }
    return -1;
}

/* The options that put one value in one place. */
#define FIELD(x) offsetof(struct train_options, x)
static const struct simple_option {
    int option;
    enum { FLAG, TEXT, RANKS, VALUE } kind; /* fields of bool, const char * and int; or a value of the job */
    size_t field;
    const char *name, *key; /* of RANKS and VALUE; the key of a VALUE */
} simple_options[] = {
    {.option = OPT_PLAN, FLAG, FIELD(plan)},
    {.option = OPT_FIND, FLAG, FIELD(find_batch_size)},
    {.option = OPT_JSON, FLAG, FIELD(json)},
    {.option = OPT_PRINT, FLAG, FIELD(print_config)},
    {.option = OPT_FRESH, FLAG, FIELD(job.fresh)},
    {.option = OPT_NORMALIZE, FLAG, FIELD(embed.normalize)},
    {.option = OPT_LIST, FLAG, FIELD(question.list_strategies)},
    {.option = OPT_EXPLAIN, TEXT, FIELD(question.explain)},
    {.option = OPT_CONVERT, TEXT, FIELD(question.convert)},
    {.option = 'o', TEXT, FIELD(question.output)},
    {.option = OPT_EVALUATE, TEXT, FIELD(evaluate)},
    {.option = OPT_SYSTEM, TEXT, FIELD(generate.system)},
    {.option = OPT_EMBED, TEXT, FIELD(embed.path)},
    {.option = OPT_TEXTS, TEXT, FIELD(embed.texts)},
    {.option = OPT_POOLING, TEXT, FIELD(embed.pooling)},
    {.option = OPT_GPU, TEXT, FIELD(estimate.gpu)},
    {.option = OPT_STRATEGY, TEXT, FIELD(estimate.strategies)},
    {.option = OPT_NPROC, RANKS, FIELD(nproc), "--nproc"},
    {.option = OPT_GPUS, RANKS, FIELD(estimate.gpus), "--gpus"},
    {.option = OPT_GPUS_PER_NODE, RANKS, FIELD(estimate.gpus_per_node), "--gpus_per_node"},
    {.option = OPT_SET, VALUE, 0, NULL, ""},
    {.option = OPT_MODE, VALUE, 0, "--mode", "training.strategy"},
    {.option = OPT_OUTPUT, VALUE, 0, "--output_dir", "output_dir"},
    {.option = OPT_SEED, VALUE, 0, "--seed", "training.seed"},
    {.option = OPT_MODEL, VALUE, 0, "--model_name", "model.name"},
    {.option = OPT_DEEPSPEED, VALUE, 0, "--deepspeed", "deepspeed"},
    {.option = OPT_NEW_TOKENS, VALUE, 0, "--max_new_tokens", "generation.max_new_tokens"},
    {.option = OPT_TEMPERATURE, VALUE, 0, "--temperature", "generation.temperature"},
};

/* -1: it is not among the simple ones; 0 or DT_EXIT_USAGE. */
static int read_simple(struct train_options *o, int option)
{
    const struct simple_option *x = simple_options, *end = x + sizeof simple_options / sizeof *simple_options;
    while (x < end && x->option != option) {
        x++;
    }
    if (x == end) {
        return -1;
    }
    void *field = (char *)o + x->field;
    switch (x->kind) {
    case FLAG:
        *(bool *)field = true;
        return 0;
    case TEXT:
        *(const char **)field = optarg;
        return 0;
    case RANKS:
        return read_ranks(x->name, field) ? 0 : DT_EXIT_USAGE;
    case VALUE:
        train_add_set(o, x->name, x->key, optarg);
        return 0;
    }
    return -1;
}

int train_read_options(struct train_options *o, int argc, char **argv)
{
    opterr = 0;
    for (;;) {
        long long number = 0;
        int option = getopt_long(argc, argv, ":ho:", long_options, NULL);
        int result = option != -1 ? read_simple(o, option) : finish(o, argc, argv);
        if (option == -1 || result > 0) {
            return result;
        }
        if (result == 0) {
            continue;
        }
        switch (option) {
        case OPT_CONFIG:
            add_config(o, optarg);
            break;
        case OPT_ACCEPT:
            add_accepted(o, optarg);
            break;
        case OPT_GENERATE:
        case OPT_CHAT:
            if (o->generate.path != NULL) {
                return refuse("--generate, --chat: one of them, once");
            }
            o->generate.path = optarg;
            o->generate.chats = option == OPT_CHAT;
            break;
        case OPT_PROMPT:
        case OPT_PROMPT_IDS:
            train_add_prompt(&o->generate, option == OPT_PROMPT, optarg);
            break;
        case OPT_BATCH_SIZE:
            if (!dt_parse_int64(optarg, &number) || number < 1 || number > 65536) {
                fprintf(stderr, "train: --batch_size: %s: must be a whole number from 1 to 65536\n", optarg);
                return DT_EXIT_USAGE;
            }
            o->batch_size = number;
            break;
        case OPT_DISK:
            if (!dt_parse_bytes(optarg, &o->estimate.disk_bytes_per_s)) {
                fprintf(stderr, "train: --disk: %s: give bytes per second, such as 12GB\n", optarg);
                return DT_EXIT_USAGE;
            }
            break;
        case OPT_MODELS:
            return print(preset_list);
        case OPT_SCHEMA:
            return print(job_schema);
        case 'h':
        case OPT_HELP:
            fputs(usage, stdout);
            return DT_EXIT_DONE;
        case OPT_VERSION:
            printf("train %s\n", DT_VERSION);
            return DT_EXIT_DONE;
        default:
            say_wrong(option == ':',
                      optopt > 0 && optopt < OPT_PLAN ? (const char[]){'-', (char)optopt, 0} : argv[optind - 1]);
            return DT_EXIT_USAGE;
        }
    }
}
