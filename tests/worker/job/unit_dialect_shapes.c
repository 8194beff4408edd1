/* covers: worker/job/dialects base/config.c */
/* Each value of files of other systems replaced by one of another shape, at every depth: a list where an object
 * stands, an object where a number does. Whatever comes of it, a job or lines that say why not, nothing breaks. */
#include "base/yaml.h"
#include "tests/lib/job_files.h"
#include "worker/job/convert.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

static const char *const shapes[] = {"[1]", "{\"init_args\": [1]}", "null", "[{\"class_path\": \"a.B\"}, null]",
                                     "{\"a\": {\"b\": 1}}"};
enum { SHAPES = sizeof shapes / sizeof shapes[0], FEW = 2 };

/* Texts with values that the files of tests/golden/dialects lack. */
static const char *const texts[] = {
    "{\"lightning\": {\"trainer\": {\"max_time\": {\"class_path\": \"datetime.timedelta\", \"init_args\": {\"days\": "
    "1}}}}}",
    "{\"trainer\": {\"max_epochs\": 2, \"callbacks\": [{\"class_path\": \"Timer\", \"init_args\": {\"duration\": "
    "{\"days\": 1}}}, {\"class_path\": \"EarlyStopping\", \"init_args\": {\"monitor\": \"val_loss\"}}, "
    "{\"class_path\": "
    "\"GradientAccumulationScheduler\", \"init_args\": {\"scheduling\": {\"0\": 2}}}]}, \"optimizer\": "
    "{\"class_path\": "
    "\"torch.optim.AdamW\", \"init_args\": {\"lr\": 0.1, \"betas\": [0.9, 0.99]}}, \"lr_scheduler\": {\"class_path\": "
    "\"torch.optim.lr_scheduler.StepLR\", \"init_args\": {\"step_size\": 2}}}",
    "{\"trainer\": {\"max_epochs\": 2, \"strategy\": {\"class_path\": \"DDPStrategy\", \"init_args\": "
    "{\"ddp_comm_state\": {\"class_path\": \"PowerSGDState\", \"init_args\": {\"warm_start\": true}}, \"timeout\": "
    "{\"class_path\": \"datetime.timedelta\", \"init_args\": {\"days\": 1}}}}}}",
    "{\"strategies\": {\"mine\": {\"base\": \"zero2\", \"fsdp\": {\"overlap_comm\": false}}}, \"training\": "
    "{\"strategy\": \"mine\"}}",
};

static struct dt_text trying; /* what is read */

/* Prints a tree, of which value number *left from here is another one. Returns how many values it has. */
static int print(const cJSON *value, int place, const char *instead, struct dt_text *out)
{
    int count = 1;
    if (place == 0) {
        dt_text_puts(out, instead);
        return count;
    }
    if (value->child == NULL) {
        char *text = cJSON_PrintUnformatted(value);
        dt_text_puts(out, text);
        cJSON_free(text);
        return count;
    }
    dt_text_puts(out, cJSON_IsArray(value) ? "[" : "{");
    for (const cJSON *v = value->child; v != NULL; v = v->next) {
        if (cJSON_IsObject(value)) {
            cJSON *key = cJSON_CreateString(v->string);
            char *text = cJSON_PrintUnformatted(key);
            dt_text_printf(out, "%s: ", text);
            cJSON_free(text);
            cJSON_Delete(key);
        }
        count += print(v, place > 0 ? place - count : -1, instead, out);
        dt_text_puts(out, v->next != NULL ? ", " : "");
    }
    dt_text_puts(out, cJSON_IsArray(value) ? "]" : "}");
    return count;
}

/* Reads and converts what is in `trying`. */
static void attempt(const char *name)
{
    struct job job;
    struct dt_text out, notes;
    struct dt_error err = {0};
    const char *path = path_of(name);
    struct job_arguments args = {.path = path, .set = basic, .set_count = 4, .world = 2};
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600); /* dt_file_write would wait for the disk */
    assert_true(fd >= 0 && write(fd, trying.data, trying.size) == (ssize_t)trying.size);
    (void)close(fd);
    dt_text_init(&out);
    dt_text_init(&notes);
    if (job_open(&job, &args, &notes, &err) == 0) {
        job_close(&job);
    } else {
        assert_true(notes.size > 0);
    }
    args.set_count = 0;
    (void)job_convert(&args, &out, &notes, &err);
    dt_text_clear(&out);
    dt_text_clear(&notes);
}

/* With the first of the shapes. */
static void all_shapes(const char *name, const char *text, size_t size, int shape_count)
{
    struct dt_error err = {0};
    cJSON *root = dt_yaml_parse(text, size, name, 100000, NULL, &err);
    if (root == NULL) { /* a file that is refused as it is */
        return;
    }
    struct dt_text whole;
    dt_text_init(&whole);
    int count = print(root, -1, "", &whole);
    for (int i = 1; i < count; i++) {
        for (int k = 0; k < shape_count; k++) {
            dt_text_reset(&trying);
            (void)print(root, i, shapes[k], &trying);
            attempt(name);
        }
    }
    dt_text_clear(&whole);
    cJSON_Delete(root);
}

static void test_golden(void **state)
{
    glob_t found;
    (void)state;
    assert_int_equal(glob("tests/golden/dialects/*.[jy][sa][om][nl]", 0, NULL, &found), 0);
    assert_in_range(found.gl_pathc, 20, 200);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct dt_error err = {0};
        struct dt_text text;
        dt_text_init(&text);
        if (dt_file_read(found.gl_pathv[i], 1 << 20, &text, &err) != 0) {
            fail_msg("%s", err.text);
        }
        all_shapes(strrchr(found.gl_pathv[i], '/') + 1, text.data, text.size, FEW);
        dt_text_clear(&text);
    }
    globfree(&found);
}

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        all_shapes("f.json", texts[i], strlen(texts[i]), SHAPES);
        all_shapes("f.yaml", texts[i], strlen(texts[i]), SHAPES);
    }
}

/* Says what a test broke at. */
static int told(void **state)
{
    (void)state;
    print_message("last of all: %s\n", dt_text_str(&trying));
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_texts, told),
        cmocka_unit_test_teardown(test_golden, told),
    };
    dt_text_init(&trying);
    int failed = cmocka_run_group_tests(tests, folder_setup, folder_teardown);
    dt_text_clear(&trying);
    return failed;
}
