/* Files of the model that a run begins with. The folder may come from anybody. So only plain names
 * and regular files are taken, links cannot lead to a secret of the user who will publish the
 * result, and sizes are bounded. A rule selects the files, not a list of names, because each
 * tokenizer has its own files. */
#include "worker/checkpoints/origin.h"

#include "base/file.h"
#include "base/scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPLATES "additional_chat_templates"
#define CONFIG "config.json"

enum { NAMES_SAID = 8, HASH_DIGITS_MIN = 40, HASH_DIGITS_MAX = 64 };

void origin_config(const char *text, size_t size, const char *architecture, struct dt_text *out)
{
    char *quoted = dt_format("\"%s\"", architecture), *list = dt_format("[\n    %s\n  ]", quoted);
    const struct {
        /* kept_with: the old value stays if it contains this text */
        const char *key, *value, *kept_with;
    } set[] = {{"architectures", list, quoted}, {"dtype", "\"float32\"", NULL}, {"torch_dtype", "\"float32\"", NULL}};
    enum { COUNT = sizeof set / sizeof set[0] };
    bool there[COUNT] = {false};
    size_t at = 0, copied = 0;
    struct dt_scan_span key, value;
    while (dt_scan_member(text, size, &at, &key, &value)) {
        for (int i = 0; i < COUNT; i++) {
            if (key.size != strlen(set[i].key) || memcmp(key.at, set[i].key, key.size) != 0) {
                continue;
            }
            there[i] = true;
            if (set[i].kept_with == NULL ||
                memmem(value.at, value.size, set[i].kept_with, strlen(set[i].kept_with)) == NULL) {
                dt_text_add(out, text + copied, (size_t)(value.at - text) - copied);
                dt_text_puts(out, set[i].value);
                copied = at;
            }
        }
    }
    dt_text_add(out, text + copied, at - copied);
    for (int i = 0; i < COUNT; i++) {
        if (!there[i]) {
            dt_text_printf(out, ",\n  \"%s\": %s", set[i].key, set[i].value);
        }
    }
    dt_text_add(out, text + at, size - at);
    free(list);
    free(quoted);
}

void origin_member(const char *text, size_t size, const char *key, const char *json, struct dt_text *out)
{
    size_t at = 0;
    struct dt_scan_span found, value;
    while (dt_scan_member(text, size, &at, &found, &value)) {
        if (found.size == strlen(key) && memcmp(found.at, key, found.size) == 0) {
            dt_text_add(out, text, (size_t)(value.at - text));
            dt_text_puts(out, json);
            dt_text_add(out, value.at + value.size, size - (size_t)(value.at + value.size - text));
            return;
        }
    }
    dt_text_add(out, text, at);
    dt_text_printf(out, ",\n  \"%s\": %s", key, json);
    dt_text_add(out, text + at, size - at);
}

/* ---- selecting files ---- */

static bool begins_with(const char *s, const char *begin)
{
    return strncmp(s, begin, strlen(begin)) == 0;
}

/* True for weights of any format, training state, and texts about the model before this
 * training. */
static bool is_left_out(const char *name)
{
    static const char *const ends[] = {".safetensors", ".index.json", ".bin",    ".pt",      ".pth",       ".ckpt",
                                       ".h5",          ".msgpack",    ".ot",     ".onnx",    ".onnx_data", ".npz",
                                       ".gguf",        ".pkl",        ".tflite", ".mlmodel", ".md"};
    bool is = strcmp(name, "trainer_state.json") == 0;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        is = is || dt_text_ends_with(name, ends[i]);
    }
    return is && !begins_with(name, "LICENSE") && !begins_with(name, "NOTICE");
}

/* True for weights that we read. The export writes new ones, so leaving them out needs no note. */
static bool is_read(const char *name)
{
    return dt_text_ends_with(name, ".safetensors") || dt_text_ends_with(name, ".safetensors.index.json");
}

/* For a target "../../blobs/HASH", as in a snapshot of Hugging Face's cache, returns the beginning
 * of HASH; else null. */
static const char *cached(const char *target)
{
    static const char blobs[] = "../../blobs/";
    const char *hash = begins_with(target, blobs) ? target + strlen(blobs) : "";
    size_t digits = strspn(hash, "0123456789abcdef");
    return digits >= HASH_DIGITS_MIN && digits <= HASH_DIGITS_MAX && hash[digits] == '\0' ? hash : NULL;
}

static int open_beside(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

/* Opens the target of a link: another name in the folder, or a file of the cache. */
static int open_link(int dir, const char *name)
{
    char target[PATH_MAX];
    ssize_t length = readlinkat(dir, name, target, sizeof target - 1);
    if (length <= 0) {
        return -1;
    }
    target[length] = '\0';
    const char *hash = cached(target);
    if (hash == NULL) {
        return strchr(target, '/') == NULL ? open_beside(dir, target) : -1;
    }
    int blobs = openat(dir, "../../blobs", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int fd = blobs >= 0 ? open_beside(blobs, hash) : -1;
    if (blobs >= 0) {
        (void)close(blobs);
    }
    return fd;
}

/* Opens a regular file. -1 with the reason in *why, written to follow the name. */
static int open_file(int dir, const char *name, size_t *size, const char **why)
{
    struct stat st;
    *why = " (not a regular file)";
    /* check before opening, because opening a device may have effects */
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))) {
        *why = S_ISDIR(st.st_mode) ? "/" : *why;
        return -1;
    }
    *why = S_ISLNK(st.st_mode) ? " (a link that leads elsewhere)" : " (cannot be read)";
    int fd = S_ISLNK(st.st_mode) ? open_link(dir, name) : open_beside(dir, name);
    if (fd >= 0 && (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))) {
        (void)close(fd);
        return -1;
    }
    *size = fd >= 0 ? (size_t)st.st_size : 0;
    return fd;
}

/* ---- copying ---- */

struct copy {
    const char *from, *to;
    bool with_config;
    int files, left_out;
    size_t bytes;
    struct dt_text *notes; /* null: no notes are wanted */
};

static void note(struct copy *c, const char *under, const char *name, const char *why)
{
    if (c->notes != NULL && c->left_out++ < NAMES_SAID) {
        dt_text_printf(c->notes, "%s%s%s%s", c->left_out > 1 ? ", " : "", under, name, why);
    }
}

/* Writes a file, and first removes the .tmp-PID that a killed process may have left. */
static int put(const struct copy *c, const char *under, const char *name, const struct dt_text *content,
               struct dt_error *err)
{
    char *dir = dt_format("%s/%s", c->to, under), *path = dt_format("%s%s", dir, name);
    int rc = dt_file_mkdirs(dir, err);
    dt_file_remove_cut(dir, (const char *const[]){name, NULL});
    rc = rc == 0 ? dt_file_write(path, dt_text_str(content), content->size, err) : rc;
    free(path);
    free(dir);
    return rc;
}

static int copy_file(struct copy *c, int dir, const char *under, const char *name, struct dt_error *err)
{
    size_t size;
    const char *why;
    int fd = open_file(dir, name, &size, &why);
    if (fd < 0) {
        note(c, under, name, why);
        return 0;
    }
    struct dt_text content;
    dt_text_init(&content);
    int rc = 0;
    if (size > ORIGIN_FILE_BYTES || c->bytes + size > ORIGIN_BYTES || c->files == ORIGIN_FILES_MAX) {
        note(c, under, name, c->files == ORIGIN_FILES_MAX ? " (too many files)" : " (too large)");
    } else if ((rc = dt_file_read_fd(fd, name, ORIGIN_FILE_BYTES, &content, err)) == 0) {
        c->files++;
        c->bytes += content.size;
        rc = put(c, under, name, &content, err);
    } else {
        (void)dt_wrap(err, "%s", c->from);
    }
    dt_text_clear(&content);
    (void)close(fd);
    return rc;
}

/* alphasort would depend on the locale */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool is_plain(const char *name)
{
    bool plain = name[0] != '.';
    for (const char *p = name; *p != '\0'; p++) {
        plain = plain && !dt_text_is_control(*p);
    }
    return plain;
}

/* True for folders whose files belong to the model: templates, and how the sentence-transformers library pools. */
static bool is_kept_folder(const char *name)
{
    return strcmp(name, TEMPLATES) == 0 || dt_text_ends_with(name, "_Pooling") || dt_text_ends_with(name, "_Normalize");
}

/* Copies the files of a folder. under: "", or the name of one in it with a slash. */
static int copy_all(struct copy *c, int dir, const char *under, struct dt_error *err)
{
    struct dirent **names = NULL;
    int count = scandirat(dir, ".", &names, NULL, by_name), rc = 0;
    if (count < 0) {
        return dt_fail_errno(err, "%s/%s", c->from, under);
    }
    for (int i = 0; i < count; i++) {
        const char *name = names[i]->d_name;
        int inner = *under == '\0' && is_plain(name) && is_kept_folder(name)
                        ? openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                        : -1;
        if (inner >= 0) {
            char *path = dt_format("%s/", name);
            rc = rc == 0 ? copy_all(c, inner, path, err) : rc;
            free(path);
            (void)close(inner);
        } else if (rc == 0 && is_plain(name) && is_left_out(name)) {
            if (!is_read(name)) {
                note(c, under, name, "");
            }
        } else if (rc == 0 && is_plain(name) && (c->with_config || strcmp(name, CONFIG) != 0)) {
            rc = copy_file(c, dir, under, name, err);
        }
        free(names[i]);
    }
    free(names);
    return rc;
}

static int copy(struct copy *c, struct dt_error *err)
{
    int dir = open(c->from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) {
        return dt_fail_errno(err, "%s", c->from);
    }
    int rc = copy_all(c, dir, "", err);
    (void)close(dir);
    return rc;
}

int origin_keep(const char *folder, const char *kept, struct dt_text *notes, struct dt_error *err)
{
    char *whole = dt_format("%s.tmp", kept);
    struct copy c = {.from = folder, .to = whole, .with_config = true, .notes = notes};
    int rc = 0;
    if (dt_file_remove_tree(whole, err) != 0 || dt_file_mkdirs(whole, err) != 0 || copy(&c, err) != 0 ||
        dt_file_remove_tree(kept, err) != 0) {
        rc = -1;
    } else if (rename(whole, kept) != 0) {
        rc = dt_fail_errno(err, "%s", kept);
    }
    free(whole);
    if (rc != 0) {
        return -1;
    }
    if (c.left_out > NAMES_SAID) {
        dt_text_printf(notes, " and %d more", c.left_out - NAMES_SAID);
    }
    return 0;
}

int origin_copy(const char *kept, const char *folder, struct dt_error *err)
{
    struct copy c = {.from = kept, .to = folder};
    return copy(&c, err);
}

static int copy_tokenizer_file(const char *from, const char *kept, const char *name, struct dt_error *err)
{
    struct dt_text content;
    char *to = dt_format("%s/%s", kept, name);
    dt_text_init(&content);
    int rc = dt_file_read(from, ORIGIN_FILE_BYTES, &content, err);
    rc = rc == 0 ? dt_file_write(to, dt_text_str(&content), content.size, err) : rc;
    dt_text_clear(&content);
    free(to);
    return rc;
}

int origin_keep_tokenizer(const char *path, const char *kept, struct dt_error *err)
{
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "vocab.json",
                                        "merges.txt",
                                        "vocab.txt",
                                        "tokenizer.model"};
    struct stat st;
    if (dt_file_mkdirs(kept, err) != 0) {
        return -1;
    }
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        return copy_tokenizer_file(path, kept, names[0], err);
    }
    int rc = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && rc == 0; i++) {
        char *from = dt_format("%s/%s", path, names[i]);
        rc = dt_file_exists(from) ? copy_tokenizer_file(from, kept, names[i], err) : 0;
        free(from);
    }
    return rc;
}
