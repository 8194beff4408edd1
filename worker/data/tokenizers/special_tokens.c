/* See the header. */
#include "worker/data/tokenizers/special_tokens.h"

#include "base/file.h"
#include "base/scan.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_BYTES = 1 << 24 };

char *special_tokens_beside(const char *path, const char *name)
{
    struct stat st;
    char *folder = dt_strdup(path);
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        dt_file_strip(folder);
    }
    char *beside = dt_format("%s/%s", folder, name);
    free(folder);
    return beside;
}

static int add_file(const char *path, cJSON *to, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int rc = dt_file_read(path, FILE_BYTES, &text, err);
    cJSON *file = rc == 0 ? dt_scan_parse_others(dt_text_str(&text), text.size, path, err) : NULL;
    const cJSON *member;
    cJSON_ArrayForEach(member, file)
    {
        const cJSON *content = cJSON_IsObject(member) ? cJSON_GetObjectItemCaseSensitive(member, "content") : member;
        if (member->string != NULL && dt_text_ends_with(member->string, "_token") && cJSON_IsString(content) &&
            cJSON_GetObjectItemCaseSensitive(to, member->string) == NULL) {
            (void)cJSON_AddStringToObject(to, member->string, content->valuestring);
        }
    }
    dt_text_clear(&text);
    rc = file != NULL ? 0 : -1;
    cJSON_Delete(file);
    return rc;
}

cJSON *special_tokens_read(const char *path, struct dt_error *err)
{
    static const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json"};
    cJSON *tokens = cJSON_CreateObject();
    int rc = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && rc == 0; i++) {
        char *file = special_tokens_beside(path, names[i]);
        rc = dt_file_exists(file) ? add_file(file, tokens, err) : 0;
        free(file);
    }
    if (rc == 0) {
        return tokens;
    }
    cJSON_Delete(tokens);
    return NULL;
}
