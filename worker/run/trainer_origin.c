/* What an exported folder holds beside the weights: found where the run begins, kept for its
 * end. */
#include "worker/run/trainer.h"

#include "base/file.h"
#include "worker/checkpoints/hf.h"
#include "worker/checkpoints/origin.h"
#include "worker/data/tokenizers/special_tokens.h"
#include "worker/data/tokenizers/tokenizer.h"
#include "worker/job/folder.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void put_member(void *to, const char *key, const char *json)
{
    struct dt_text *config = to, out;
    dt_text_init(&out);
    origin_member(dt_text_str(config), config->size, key, json, &out);
    dt_text_clear(config);
    *config = out;
}

/* The same, but for the names of classes. */
static void put_unnamed(void *to, const char *key, const char *json)
{
    if (strcmp(key, "id2label") != 0 && strcmp(key, "label2id") != 0) {
        put_member(to, key, json);
    }
}

/* config.json has another head than the folder's if the job has. Classes that stay keep their names. */
static void put_head(const struct trainer *t, const struct model_sizes *loaded, const cJSON *came,
                     struct dt_text *config)
{
    const struct model_ops *model = t->job->model.ops;
    bool differs = false, named = cJSON_HasObjectItem(came, "id2label");
    for (const char *const *key = model->head_keys; key != NULL && *key != NULL; key++) {
        bool same = model_same(model, *key, t->job->model.sizes.bytes, loaded->bytes);
        differs = differs || !same;
        named = named && (same || (strcmp(*key, "num_labels") != 0 && strcmp(*key, "task") != 0));
    }
    if (differs) {
        model->put_head(t->job->model.sizes.bytes, named ? put_unnamed : put_member, config);
    }
}

/* True if the folder's config.json says that the head is the embedding, and its weights say another
 * (hf_untie), which the run has. */
static bool untied(const struct trainer *t, const struct model_sizes *loaded)
{
    const struct model_ops *model = t->job->model.ops;
    bool has_head = false;
    for (int i = 0; i < t->chain.tensor_count && model->tied.key != NULL; i++) {
        has_head = has_head || strcmp(t->chain.tensors[i].name, model->tied.head) == 0;
    }
    return has_head && model_flag(model, loaded->bytes, model->tied.key) &&
           !model_flag(model, t->job->model.sizes.bytes, model->tied.key);
}

/* config.json from the folder that the run begins with; null: it begins without. */
static int describe_model(struct trainer *t, const char *load, struct dt_error *err)
{
    const struct model_ops *model = t->job->model.ops, *loaded;
    struct model_sizes sizes;
    struct dt_text came, out;
    int rc = 0;
    dt_text_init(&came);
    dt_text_init(&out);
    if (load == NULL) {
        model_write_config(model, t->chain.spec.sizes, &out);
    } else if ((rc = hf_config(load, &loaded, &sizes, &came, err)) == 0) {
        cJSON *config = cJSON_ParseWithLength(came.data, came.size);
        char *class = model_class(model, t->chain.spec.sizes,
                                  cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(config, "model_type")));
        origin_config(came.data, came.size, class, &out);
        free(class);
        put_head(t, &sizes, config, &out);
        cJSON_Delete(config);
        if (untied(t, &sizes)) {
            put_member(&out, model->tied.key, "false");
            observers_say(
                &t->observers,
                "train: model.load: %s: %s differs from %s, though config.json says %s true: the run keeps both, "
                "and its own config.json says false",
                load, model->tied.head, model->tied.table, model->tied.key);
        }
    }
    if (rc == 0) {
        trainer_set_config(t, dt_text_str(&out));
    }
    dt_text_clear(&came);
    dt_text_clear(&out);
    return rc;
}

void trainer_set_config(struct trainer *t, const char *text)
{
    free(t->saver.model_config);
    t->saver.model_config = dt_strdup(text);
}

int trainer_share_config(struct trainer *t, struct dt_error *err)
{
    struct dt_text text;
    if (t->job->checkpointing.snapshot_every_n_steps == 0 || t->world->node_count <= 1) {
        return 0;
    }
    dt_text_init(&text);
    dt_text_puts(&text, t->rank == 0 ? t->saver.model_config : "");
    int rc = trainer_share(t, "train/config", &text, NULL, INFINITY, err);
    if (rc == 0 && t->rank != 0) {
        trainer_set_config(t, dt_text_str(&text));
    }
    dt_text_clear(&text);
    return rc;
}

/* config.json has the job's probabilities of dropout. One that it has already stays as it is written. */
static void put_dropout(struct trainer *t)
{
    const struct model_ops *ops = t->job->model.ops;
    struct model_sizes written;
    cJSON *config = cJSON_Parse(t->saver.model_config);
    bool read = model_read_folder(ops, config, written.bytes, NULL) == 0;
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, t->saver.model_config);
    for (const struct dt_field *f = ops->fields; read && f->key != NULL; f++) {
        if (model_drops(ops, f->key) && !model_same(ops, f->key, t->job->model.sizes.bytes, written.bytes)) {
            struct dt_text value;
            dt_text_init(&value);
            dt_config_format(f, t->job->model.sizes.bytes, &value);
            dt_text_puts(&value, strcmp(dt_text_str(&value), "0") == 0 ? ".0" : ""); /* the library wants a float */
            put_member(&text, f->key, dt_text_str(&value));
            dt_text_clear(&value);
        }
    }
    trainer_set_config(t, dt_text_str(&text));
    dt_text_clear(&text);
    cJSON_Delete(config);
}

int64_t trainer_document_end(const struct trainer *t)
{
    const struct data_source *s = &t->feeds.train;
    bool next = s->targets >= 0 && s->layout.field[s->targets].shifted;
    return t->job->model.load == NULL && next ? s->document_end : -1;
}

/* Sets a member of the run's config.json. */
static void put_id(struct trainer *t, const char *key, int64_t id)
{
    char number[24];
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, t->saver.model_config);
    (void)snprintf(number, sizeof number, "%" PRId64, id);
    put_member(&text, key, number);
    trainer_set_config(t, dt_text_str(&text));
    dt_text_clear(&text);
}

/* config.json of a model from the beginning that writes text has the ids at which texts begin and end: those of the
 * tokenizer that the job names, if it is a file, and of the data's documents. Generation stops at the latter. A
 * tokenizer whose files are not right was refused before, or does without. */
static void put_ends(struct trainer *t)
{
    static const char *const tokens[][2] = {{"bos_token", "bos_token_id"}, {"eos_token", "eos_token_id"}};
    const struct data_source *s = &t->feeds.train;
    const char *path = t->job->data.tokenizer;
    int64_t end = trainer_document_end(t);
    bool next = s->targets >= 0 && s->layout.field[s->targets].shifted;
    struct tokenizer *tokenizer = NULL;
    if (next && t->job->model.load == NULL && path != NULL && dt_file_exists(path) &&
        tokenizer_open(&tokenizer, path, NULL) == 0) {
        cJSON *special = special_tokens_read(path, NULL);
        for (int i = 0; i < 2; i++) {
            const char *token = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(special, tokens[i][0]));
            int32_t id = token != NULL ? tokenizer_id(tokenizer, token, strlen(token)) : -1;
            if (id >= 0) {
                put_id(t, tokens[i][1], id);
            }
        }
        cJSON_Delete(special);
    }
    tokenizer_close(tokenizer);
    if (end >= 0) {
        put_id(t, "eos_token_id", end);
    }
}

/* The config.json that is kept says what the weights say, which are not there when the source is gone. */
static int keep_untied(const struct trainer *t, const char *own, struct dt_error *err)
{
    const struct model_ops *model;
    struct model_sizes sizes;
    struct dt_text text;
    dt_text_init(&text);
    char *path = dt_format("%s/config.json", own);
    int rc = dt_file_exists(path) ? hf_config(own, &model, &sizes, &text, err) : 0;
    if (rc == 0 && text.size > 0 && untied(t, &sizes)) {
        put_member(&text, model->tied.key, "false");
        rc = dt_file_write(path, dt_text_str(&text), text.size, err);
    }
    dt_text_clear(&text);
    free(path);
    return rc;
}

/* The folder of checkpoints gets the origin that lies in `from`, or none (null). */
static int keep(struct trainer *t, const char *from, const char *own, struct dt_error *err)
{
    struct dt_text left_out;
    dt_text_init(&left_out);
    int rc = from != NULL ? origin_keep(from, own, &left_out, err) : dt_file_remove_tree(own, err);
    rc = rc == 0 && from != NULL ? keep_untied(t, own, err) : rc;
    if (rc == 0 && left_out.size > 0) {
        observers_say(&t->observers, "train: %s: not kept for the exported folder: %s", from, dt_text_str(&left_out));
    }
    dt_text_clear(&left_out);
    return rc == 0 ? 0 : dt_wrap(err, "model.load");
}

/* A run that goes on has the origin of the checkpoint. Where that one has none: of model.load,
 * or what is there stays. */
static int keep_found(struct trainer *t, const char *own, struct dt_error *err)
{
    const char *load = t->job->model.load;
    char *other = checkpoint_origin(t->saver.saved_path), *home = dt_strdup(other);
    dt_file_strip(home);
    bool ours = trainer_same_file(home, t->job->checkpointing.checkpoint_dir), there = dt_file_exists(other);
    int rc = 0;
    if (there && !ours) {
        rc = keep(t, other, own, err);
    } else if (!there && load != NULL && dt_file_exists(load)) {
        rc = keep(t, load, own, err);
    }
    char *config = dt_format("%s/config.json", own);
    if (rc == 0 && t->saver.rewritten && dt_file_exists(config)) {
        rc = describe_model(t, own, err);
    }
    free(config);
    free(home);
    free(other);
    return rc;
}

static int find_class(const struct data_source *s, const char *name)
{
    int i = 0;
    while (i < s->class_count && strcmp(s->classes[i], name) != 0) {
        i++;
    }
    return i;
}

/* A model that has names of the data's classes in another order knows other classes by the same numbers. */
static int check_classes(const struct data_source *s, const cJSON *config, struct dt_error *err)
{
    const cJSON *name, *names = cJSON_GetObjectItemCaseSensitive(config, "id2label");
    char id[16];
    cJSON_ArrayForEach(name, names)
    {
        int i = cJSON_IsString(name) ? find_class(s, name->valuestring) : s->class_count;
        (void)snprintf(id, sizeof id, "%d", i);
        if (i < s->class_count && strcmp(id, name->string) != 0) {
            return dt_fail(err, DT_INVALID,
                           "data.train: class %d is %s, which is class %s of the model; make the data with its order "
                           "of labels (dtdata tokenize --labels)",
                           i, s->classes[i], name->string);
        }
    }
    return 0;
}

/* The same of a run that goes on, with data that were accepted. */
static int check_found(const struct trainer *t, struct dt_error *err)
{
    cJSON *config = cJSON_Parse(t->saver.model_config);
    int rc = check_classes(&t->feeds.train, config, err);
    cJSON_Delete(config);
    return rc;
}

/* config.json has the names of the data's classes. */
static int put_classes(struct trainer *t, struct dt_error *err)
{
    const struct data_source *s = &t->feeds.train;
    const struct model_ops *model = t->job->model.ops;
    if (s->class_count == 0 || model->put_head == NULL) {
        return 0;
    }
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, t->saver.model_config);
    cJSON *config = cJSON_Parse(dt_text_str(&text)), *numbers = cJSON_CreateObject(), *name;
    if (!cJSON_HasObjectItem(config, "id2label")) {
        model->put_head(t->job->model.sizes.bytes, put_member, &text);
        cJSON_Delete(config);
        config = cJSON_Parse(dt_text_str(&text));
    }
    cJSON *names = cJSON_GetObjectItemCaseSensitive(config, "id2label");
    char id[16];
    int rc = check_classes(s, config, err);
    for (int i = 0; i < s->class_count && rc == 0; i++) {
        (void)snprintf(id, sizeof id, "%d", i);
        cJSON_ReplaceItemInObjectCaseSensitive(names, id, cJSON_CreateString(s->classes[i]));
    }
    cJSON_ArrayForEach(name, names)
    {
        cJSON_AddNumberToObject(numbers, cJSON_IsString(name) ? name->valuestring : "", strtod(name->string, NULL));
    }
    if (rc == 0) {
        char *by_id = cJSON_Print(names), *by_name = cJSON_Print(numbers);
        put_member(&text, "id2label", by_id);
        put_member(&text, "label2id", by_name);
        trainer_set_config(t, dt_text_str(&text));
        cJSON_free(by_id);
        cJSON_free(by_name);
    }
    dt_text_clear(&text);
    cJSON_Delete(numbers);
    cJSON_Delete(config);
    return rc;
}

/* The tokenizer that the job names, if it is a file or a folder, belongs to the exported folder, too. */
static int keep_tokenizer(const struct trainer *t, const char *own, struct dt_error *err)
{
    const char *path = t->job->data.tokenizer;
    if (path == NULL || !dt_file_exists(path)) {
        return 0;
    }
    return origin_keep_tokenizer(path, own, err) == 0 ? 0 : dt_wrap(err, "data.tokenizer");
}

int trainer_keep_origin(struct trainer *t, bool found, struct dt_error *err)
{
    const char *load = t->job->model.load, *dir = t->job->checkpointing.checkpoint_dir;
    if (t->rank != 0) {
        return 0;
    }
    char *own = dt_format("%s/" ORIGIN_FOLDER, dir);
    int rc = 0;
    if (!found) {
        rc = describe_model(t, load, err) == 0 ? keep(t, load, own, err) : dt_wrap(err, "model.load");
        rc = rc == 0 ? keep_tokenizer(t, own, err) : rc;
        rc = rc == 0 ? put_classes(t, err) : rc;
        put_ends(t);
    } else {
        rc = check_found(t, err) == 0 ? keep_found(t, own, err) : -1;
    }
    free(own);
    if (rc == 0 && !t->run.finished_before) { /* what is exported then is what was saved */
        put_dropout(t);
    }
    if (rc == 0 && t->world->round <= 1 && found && load != NULL && !dt_file_exists(load)) {
        observers_say(&t->observers,
                      "train: model.load: %s: is not there; not needed, since the run goes on from its own weights",
                      load);
    }
    return rc;
}
