/* One value against one rule: parts of config.c that know nothing of files and keys. */
#ifndef DT_BASE_CONFIG_VALUE_H
#define DT_BASE_CONFIG_VALUE_H

#include "base/config.h"

struct cJSON;
/* Stores a value as the rule says; strings are copied to the arena. False (out untouched) when
 * it does not fit. */
bool dt_value_parse(const struct dt_rule *rule, const struct cJSON *value, struct dt_arena *arena, void *out);
/* Appends a value as it stands in the file, cut short. */
void dt_value_show(const struct cJSON *value, struct dt_text *out);
/* True for a choice that is known and not there yet. */
bool dt_value_is_later(const struct dt_rule *rule, const struct cJSON *value);
/* The choice that the value may have meant, or null. Choices are in lower case; the word is in
 * the arena. */
const char *dt_value_nearest(const struct dt_rule *rule, const struct cJSON *value, struct dt_arena *arena);
/* Appends what the rule wants: "a whole number of at least 1", "one of: a, b". */
void dt_value_expected(const struct dt_rule *rule, struct dt_text *out);

#endif
