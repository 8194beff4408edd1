/* dtckpt: looks at checkpoints. Every command but import takes a checkpoint (.../step-00000300), a
 * checkpoints folder or a run's folder; the last two mean the newest complete checkpoint there,
 * and every one of them for list and verify. */
#include "base/arena.h"
#include "base/file.h"
#include "base/size.h"
#include "worker/checkpoints/checkpoint.h"
#include "worker/checkpoints/checkpoint_export.h"
#include "worker/checkpoints/llmc.h"
#include "worker/run/prompt.h"

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char help[] = "usage: dtckpt COMMAND PATH [...]\n"
                           "\n"
                           "PATH is a checkpoint (runs/demo/checkpoints/step-00000300), or a folder of\n"
                           "checkpoints or of a run, which means the newest complete one in it.\n"
                           "\n"
                           "  list PATH           step, size and state of each checkpoint in the folder\n"
                           "  verify PATH...      reads everything, compares every checksum; of a folder\n"
                           "                      each checkpoint in it, and names the damaged ones\n"
                           "  hash PATH...        one hash over the logical weights (names, shapes, dtypes,\n"
                           "                      values): the same for every world size and strategy\n"
                           "  diff PATH PATH      the tensors whose weights differ, and by how much\n"
                           "  export PATH FOLDER [--dtype TYPE] [--max_shard_size SIZE]\n"
                           "                      the model as a Hugging Face folder: config.json,\n"
                           "                      model.safetensors, and the files that came with\n"
                           "                      model.load; TYPE of the weights: float32 (if not\n"
                           "                      given), bf16 or fp16; SIZE of a file at most: 5GB (if\n"
                           "                      not given), 200MB, ... or bytes; more weights go to\n"
                           "                      several files with an index\n"
                           "  import FILE FOLDER  a model_*.bin of llm.c as a Hugging Face folder, which\n"
                           "                      model.load takes; FOLDER is new or empty\n"
                           "  sample PATH [PROMPT [COUNT]]\n"
                           "                      text that the model writes after PROMPT (COUNT bytes, 300)\n"
                           "\n"
                           "  --help  --version\n"
                           "\n"
                           "Exit codes: 0 done, 1 damaged or different, 2 wrong use or nothing there.\n";

/* PATH itself, or the newest complete checkpoint below it. The caller frees. */
static char *resolve(const char *path, struct dt_error *err)
{
    struct stat st;
    char *manifest = dt_format("%s/manifest.json", path), *below = dt_format("%s/checkpoints", path), *found = NULL;
    if (dt_file_exists(manifest)) {
        found = dt_strdup(path);
    } else if (!dt_file_exists(path)) {
        (void)dt_fail(err, DT_NOT_FOUND, "%s: no such folder", path);
    } else if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        (void)dt_fail(err, DT_NOT_FOUND, "%s: is a file; give the folder of a checkpoint or of a run", path);
    } else {
        struct dt_text notes;
        dt_text_init(&notes);
        if (checkpoint_find(dt_file_exists(below) ? below : path, &found, &notes, err) != 0) {
            found = NULL;
        }
        if (notes.size > 0) {
            dt_text_say(stderr, "dtckpt: %s", dt_text_str(&notes));
        }
        dt_text_clear(&notes);
    }
    free(below);
    free(manifest);
    return found;
}

static int fail(const struct dt_error *err, int code)
{
    (void)fprintf(stderr, "dtckpt: %s\n", err->text);
    return code;
}

/* Opens what PATH means. */
static struct checkpoint *open_at(const char *path, struct dt_error *err)
{
    struct checkpoint *c = NULL;
    char *resolved = resolve(path, err);
    if (resolved != NULL && checkpoint_open(&c, resolved, err) != 0) {
        c = NULL;
    }
    free(resolved);
    return c;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* True for a checkpoint of another course of training, which the present run does not need. */
static bool is_aside(const char *name)
{
    return strstr(name, ".old-") != NULL;
}

enum standing {
    STANDING_WHOLE, /* or on its way */
    STANDING_DAMAGED,
    STANDING_FOREIGN /* somebody else's folder whose name begins as ours do */
};

/* "step-00000300", and what comes of one: the names that a run looks at. */
static bool is_our_name(const char *name)
{
    bool leftover;
    const char *old = strstr(name, ".old-");
    char *base = old != NULL ? dt_format("%.*s", (int)(old - name), name) : dt_strdup(name);
    bool ours = checkpoint_step_of(base, &leftover) >= 0;
    free(base);
    return ours;
}

static bool holds_slices(const char *path)
{
    bool found = false;
    DIR *d = opendir(path);
    for (struct dirent *e; d != NULL && !found && (e = readdir(d)) != NULL;) {
        found = strncmp(e->d_name, "slices-", 7) == 0;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return found;
}

/* Without a manifest, by its name or by what it holds: never a checkpoint, rather than one that
 * has lost its manifest. */
static bool is_foreign(const char *path, const char *name)
{
    return !checkpoint_looks_whole(path) && !(is_our_name(name) && holds_slices(path));
}

static const char *const foreign = "not a checkpoint of dtrun: it holds no manifest.json";

/* Says what a kill interrupted in a checkpoint of this name; null when nothing was. */
static const char *cut_short(const char *name)
{
    if (!is_our_name(name)) {
        return NULL;
    }
    return strstr(name, ".tmp-gone-") != NULL ? "cut short while it was removed; the next save goes on"
           : strstr(name, ".tmp-") != NULL    ? "cut short while it was written; the next save removes it"
                                              : NULL;
}

/* One line of `list`. */
static enum standing list_one(const char *folder, const char *name)
{
    struct dt_error err;
    struct checkpoint *c = NULL;
    char *full = dt_format("%s/%s", folder, name);
    enum standing standing = is_foreign(full, name) ? STANDING_FOREIGN : STANDING_WHOLE;
    const char *cut = cut_short(name);
    if (cut != NULL || standing == STANDING_FOREIGN) {
        standing = cut != NULL ? STANDING_WHOLE : standing;
        dt_text_say(stdout, "%-20s %10s %6s %14s  %s", name, "-", "-", "-", cut != NULL ? cut : foreign);
    } else if (checkpoint_open(&c, full, &err) != 0 && !is_our_name(name)) {
        standing = STANDING_FOREIGN;
        dt_text_say(stdout, "%-20s %10s %6s %14s  not a checkpoint of dtrun: %s", name, "-", "-", "-", err.text);
    } else if (c == NULL) {
        standing = STANDING_DAMAGED;
        dt_text_say(stdout, "%-20s %10s %6s %14s  damaged%s: %s", name, "-", "-", "-",
                    is_aside(name) ? ", set aside" : "", err.text);
    } else {
        const struct checkpoint_state *s = checkpoint_get_state(c);
        int64_t parameters = 0;
        for (int t = 0; t < checkpoint_tensor_count(c); t++) {
            const char *tensor;
            int dims;
            const int64_t *shape;
            int64_t numel = 1;
            checkpoint_tensor(c, t, &tensor, &dims, &shape);
            for (int k = 0; k < dims; k++) {
                numel *= shape[k];
            }
            parameters += numel;
        }
        /* a wrong checksum may be why it was set aside, and list reads no data */
        dt_text_say(stdout, "%-20s %10" PRId64 " %6d %14" PRId64 "  %s", name, s->step, s->ranks, parameters,
                    is_aside(name) ? "set aside, data not verified" : "complete");
    }
    checkpoint_close(c);
    free(full);
    return standing;
}

/* Reads a checkpoint whole and says what is wrong with it. */
static bool verify_whole(const char *path)
{
    struct dt_error err;
    struct checkpoint *c = NULL;
    bool sound = checkpoint_open(&c, path, &err) == 0 && checkpoint_verify(c, &err) == 0;
    if (sound) {
        dt_text_say(stdout, "%s: step %" PRId64 ": every checksum is right", path, checkpoint_get_state(c)->step);
    } else {
        (void)fprintf(stderr, "dtckpt: damaged: %s\n", err.text);
    }
    checkpoint_close(c);
    return sound;
}

static enum standing verify_one(const char *folder, const char *name)
{
    struct dt_error err;
    struct checkpoint *c = NULL;
    char *path = dt_format("%s/%s", folder, name);
    const char *cut = cut_short(name);
    enum standing standing = STANDING_WHOLE;
    if (cut != NULL) {
        dt_text_say(stdout, "%s: %s", path, cut);
    } else if (is_foreign(path, name)) {
        standing = STANDING_FOREIGN;
        dt_text_say(stdout, "%s: %s", path, foreign);
    } else if (!is_our_name(name) && checkpoint_open(&c, path, &err) != 0) {
        standing = STANDING_FOREIGN;
        dt_text_say(stdout, "%s: not a checkpoint of dtrun: %s", path, err.text);
    } else {
        standing = verify_whole(path) ? STANDING_WHOLE : STANDING_DAMAGED;
    }
    checkpoint_close(c);
    free(path);
    return standing;
}

/* Does `one` for each checkpoint in a folder or a run's folder: 0, 1 when one of them is damaged
 * that is not set aside, 2 when there is none. */
static int each(const char *path, const char *heading, enum standing (*one)(const char *folder, const char *name))
{
    struct dt_error err;
    char *below = dt_format("%s/checkpoints", path);
    const char *folder = dt_file_exists(below) ? below : path;
    struct dt_arena arena;
    dt_arena_init(&arena);
    char **names = NULL;
    size_t count = 0, damaged = 0, ours = 0;
    int code = 2;
    DIR *d = opendir(folder);
    if (d == NULL) {
        (void)dt_fail_errno(&err, "%s", folder);
        goto out;
    }
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "step-", 5) == 0) {
            names = dt_realloc(names, (count + 1) * sizeof *names);
            names[count++] = dt_arena_strdup(&arena, e->d_name);
        }
    }
    (void)closedir(d);
    if (count == 0) {
        (void)dt_fail(&err, DT_NOT_FOUND, "%s: holds no checkpoint", folder);
        goto out;
    }
    qsort(names, count, sizeof *names, compare_names);
    (void)fputs(heading, stdout);
    for (size_t i = 0; i < count; i++) {
        enum standing standing = one(folder, names[i]);
        ours += standing != STANDING_FOREIGN;
        damaged += standing == STANDING_DAMAGED && !is_aside(names[i]);
    }
    if (ours == 0) {
        (void)dt_fail(&err, DT_NOT_FOUND, "%s: holds no checkpoint of dtrun", folder);
        goto out;
    }
    code = damaged > 0 ? 1 : 0;
out:
    free(names);
    dt_arena_clear(&arena);
    free(below);
    return code == 2 ? fail(&err, 2) : code;
}

static int list(const char *path)
{
    char heading[96];
    (void)snprintf(heading, sizeof heading, "%-20s %10s %6s %14s  %s\n", "checkpoint", "step", "ranks", "parameters",
                   "state");
    return each(path, heading, list_one);
}

/* A checkpoint itself, or every one in a folder: whoever asks wants to know about all that a
 * later start may need. */
static int verify(const char *path)
{
    const char *name = strrchr(path, '/') != NULL && strrchr(path, '/')[1] != 0 ? strrchr(path, '/') + 1 : path;
    char *manifest = dt_format("%s/manifest.json", path);
    bool itself = dt_file_exists(manifest) || strncmp(name, "step-", 5) == 0;
    free(manifest);
    if (!itself) {
        return each(path, "", verify_one);
    }
    struct dt_error err;
    if (!dt_file_exists(path)) {
        (void)dt_fail(&err, DT_NOT_FOUND, "%s: no such folder", path);
        return fail(&err, 2);
    }
    if (is_foreign(path, name)) {
        (void)dt_fail(&err, DT_NOT_FOUND, "%s: %s", path, foreign);
        return fail(&err, 2);
    }
    return verify_whole(path) ? 0 : 1;
}

static int hash(const char *path, bool show_path)
{
    struct dt_error err;
    struct checkpoint *c = open_at(path, &err);
    if (c == NULL) {
        return fail(&err, err.status == DT_NOT_FOUND ? 2 : 1);
    }
    char text[33] = "";
    int result = checkpoint_hash(c, text, &err);
    if (result == 0) {
        dt_text_say(stdout, show_path ? "%s  %s" : "%s", text, path);
    }
    checkpoint_close(c);
    return result == 0 ? 0 : fail(&err, 1);
}

/* A command that is unknown, or has other arguments than it takes. */
static int refuse(const char *command)
{
    static const char *const names[] = {"list", "verify", "hash", "diff", "export", "import", "sample"};
    static const char *const takes[] = {"PATH",
                                        "PATH...",
                                        "PATH...",
                                        "PATH PATH",
                                        "PATH FOLDER [--dtype TYPE] [--max_shard_size SIZE]",
                                        "FILE FOLDER",
                                        "PATH [PROMPT [COUNT]]"};
    const char *near = dt_text_nearest(command, names, sizeof names / sizeof *names);
    if (near != NULL && strcmp(near, command) != 0) {
        dt_text_say(stderr, "dtckpt: %s: unknown command; did you mean %s?", command, near);
        return 2;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i], command) == 0) {
            (void)fprintf(stderr, "dtckpt: %s: takes %s; see dtckpt --help\n", command, takes[i]);
            return 2;
        }
    }
    dt_text_say(stderr, "dtckpt: %s%s; see dtckpt --help", command, *command != 0 ? ": unknown command" : "no command");
    return 2;
}

static int export(const char *path, const char *folder, const struct export_options *options)
{
    struct dt_error err;
    if (*folder == '\0') {
        (void)dt_fail(&err, DT_INVALID, "export: the name of the folder is empty");
        return fail(&err, 2);
    }
    struct stat st;
    if (stat(folder, &st) == 0 && !S_ISDIR(st.st_mode)) {
        (void)dt_fail(&err, DT_INVALID, "export: %s: is no folder; give another one", folder);
        return fail(&err, 2);
    }
    char *other = checkpoint_export_foreign(folder);
    if (other != NULL) {
        (void)dt_fail(&err, DT_INVALID, "export: %s: holds %s, which no export wrote; give another folder", folder,
                      other);
        free(other);
        return fail(&err, 2);
    }
    struct checkpoint *c = open_at(path, &err);
    if (c == NULL) {
        return fail(&err, err.status == DT_NOT_FOUND ? 2 : 1);
    }
    struct dt_text notes;
    dt_text_init(&notes);
    int code = checkpoint_export(c, folder, options, &notes, &err) == 0 ? 0 : fail(&err, 1);
    if (code == 0 && notes.size > 0) {
        (void)fprintf(stderr, "dtckpt: %s\n", notes.data);
    }
    dt_text_clear(&notes);
    checkpoint_close(c);
    return code;
}

/* Reads one option of export with its value. */
static int export_option(const char *name, const char *value, struct export_options *options, struct dt_error *err)
{
    static const char *const names[] = {"--dtype", "--max_shard_size"};
    if (strcmp(name, names[0]) == 0) {
        return export_parse_type(value, &options->type)
                   ? 0
                   : dt_fail(err, DT_INVALID, "export: --dtype: %s: must be float32, bf16 or fp16", value);
    }
    if (strcmp(name, names[1]) == 0) {
        return dt_parse_bytes(value, &options->shard_bytes)
                   ? 0
                   : dt_fail(err, DT_INVALID,
                             "export: --max_shard_size: %s: must be a size as 5GB or 200MB, or a number of bytes",
                             value);
    }
    const char *near = dt_text_nearest(name, names, 2);
    return dt_fail(err, DT_INVALID, "export: %s: unknown option; %s%s%s", name, near != NULL ? "did you mean " : "",
                   near != NULL ? near : "there are --dtype and --max_shard_size", near != NULL ? "?" : "");
}

/* The arguments behind "export": two paths, and options before, between or behind them. */
static int export_command(int argc, char **argv)
{
    struct export_options options = export_defaults;
    struct dt_error err;
    const char *paths[2];
    int count = 0;
    for (int i = 0; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        if (strncmp(argv[i], "--", 2) != 0) {
            if (count == 2) {
                return refuse("export");
            }
            paths[count++] = argv[i];
            continue;
        }
        char *name = equals != NULL ? dt_format("%.*s", (int)(equals - argv[i]), argv[i]) : dt_strdup(argv[i]);
        const char *value = equals != NULL ? equals + 1 : i + 1 < argc ? argv[++i] : "";
        int rc = export_option(name, value, &options, &err);
        free(name);
        if (rc != 0) {
            return fail(&err, 2);
        }
    }
    return count == 2 ? export(paths[0], paths[1], &options) : refuse("export");
}

/* Fails if the folder holds anything: it may be somebody's model. */
static int check_empty(const char *folder, struct dt_error *err)
{
    DIR *d = opendir(folder);
    int rc = 0;
    for (struct dirent *e; rc == 0 && d != NULL && (e = readdir(d)) != NULL;) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            rc =
                dt_fail(err, DT_INVALID, "import: %s: holds %s; give a new folder, or an empty one", folder, e->d_name);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return rc;
}

static int import(const char *path, const char *folder)
{
    struct dt_error err;
    if (*folder == '\0') {
        (void)dt_fail(&err, DT_INVALID, "import: the name of the folder is empty");
        return fail(&err, 2);
    }
    if (check_empty(folder, &err) != 0) {
        return fail(&err, 2);
    }
    return llmc_import(path, folder, &err) == 0 ? 0 : fail(&err, err.status == DT_NOT_FOUND ? 2 : 1);
}

static int diff(const char *first, const char *second)
{
    struct dt_error err;
    struct checkpoint *a = open_at(first, &err), *b = a != NULL ? open_at(second, &err) : NULL;
    int code, differing = 0;
    if (b == NULL) {
        code = fail(&err, err.status == DT_NOT_FOUND ? 2 : 1);
    } else {
        struct dt_text out;
        dt_text_init(&out);
        code = checkpoint_diff(a, b, &out, &differing, &err) == 0 ? differing > 0 : fail(&err, 1);
        (void)fputs(dt_text_str(&out), stdout);
        dt_text_clear(&out);
    }
    checkpoint_close(b);
    checkpoint_close(a);
    return code;
}

/* Bytes of a trained model, as people can read them: control characters and broken UTF-8 become
 * dots. */
static int sample(const char *path, const char *prompt, const char *count)
{
    struct dt_error err;
    long long tokens = 300;
    if (*prompt == '\0') {
        (void)dt_fail(&err, DT_INVALID, "sample: the prompt is empty; give at least one character");
        return fail(&err, 2);
    }
    if (count != NULL && (!dt_parse_int64(count, &tokens) || tokens < 1 || tokens > 100000)) {
        (void)dt_fail(&err, DT_INVALID, "sample: %s: must be a number from 1 to 100000", count);
        return fail(&err, 2);
    }
    struct checkpoint *c = open_at(path, &err);
    if (c == NULL) {
        return fail(&err, err.status == DT_NOT_FOUND ? 2 : 1);
    }
    struct model_source source;
    struct prompts prompts = {0};
    int result = model_source_open(&source, checkpoint_get_path(c), NULL, &err);
    checkpoint_close(c);
    const struct generate_options options = {
        .sampling = {.do_sample = true, .temperature = 0.8, .top_p = 1, .repetition_penalty = 1},
        .seed = 42,
        .max_new_tokens = tokens,
        .batch_size = 1,
        .window = source.trained_length};
    result = result == 0 ? prompts_add_text(&prompts, &source, prompt, &err) : result;
    result = result == 0 ? generate_rows(&source, &options, prompts.rows, 1, &err) : result;
    if (result == 0) {
        struct dt_text text, out;
        dt_text_init(&text);
        dt_text_init(&out);
        prompt_show_text(prompts.tokenizer, prompts.rows[0].ids, prompts.rows[0].count, &text);
        prompt_show_visible(&text, &out);
        (void)puts(dt_text_str(&out));
        dt_text_clear(&text);
        dt_text_clear(&out);
    }
    prompts_clear(&prompts);
    model_source_close(&source);
    return result == 0 ? 0 : fail(&err, 1);
}

static bool asks_help(const char *word)
{
    return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int run(int argc, char **argv)
{
    const char *command = argc > 1 ? argv[1] : "";
    if (asks_help(command) || (argc == 3 && asks_help(argv[2]))) {
        return fputs(help, stdout) < 0;
    }
    if (strcmp(command, "--version") == 0) {
        return printf("dtckpt %s\n", DT_VERSION) < 0;
    }
    if (strcmp(command, "list") == 0 && argc == 3) {
        return list(argv[2]);
    }
    if ((strcmp(command, "hash") == 0 || strcmp(command, "verify") == 0) && argc >= 3) {
        int worst = 0;
        for (int i = 2; i < argc; i++) {
            int code = command[0] == 'h' ? hash(argv[i], argc > 3) : verify(argv[i]);
            worst = code > worst ? code : worst;
        }
        return worst;
    }
    if (strcmp(command, "export") == 0) {
        return export_command(argc - 2, argv + 2);
    }
    if (strcmp(command, "import") == 0 && argc == 4) {
        return import(argv[2], argv[3]);
    }
    if (strcmp(command, "diff") == 0 && argc == 4) {
        return diff(argv[2], argv[3]);
    }
    if (strcmp(command, "sample") == 0 && argc >= 3 && argc <= 5) {
        return sample(argv[2], argc > 3 ? argv[3] : "\n", argc > 4 ? argv[4] : NULL);
    }
    return refuse(command);
}

int main(int argc, char **argv)
{
    (void)signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write */
    int code = run(argc, argv);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        (void)fprintf(stderr, "dtckpt: standard output: cannot be written\n");
        code = 1;
    }
    return code;
}
