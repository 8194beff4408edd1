/* One value and one rule: the parts of config.c that do not depend on files and keys. */
#ifndef DT_BASE_CONFIG_VALUE_H
#define DT_BASE_CONFIG_VALUE_H

#include "base/config.h"

struct cJSON;
/* Stores a value by its rule; strings are copied to the arena. False: it does not fit, and out is
 * unchanged. */
bool dt_value_parse(const struct dt_rule *rule, const struct cJSON *value, struct dt_arena *arena, void *out);
/* Appends a value as in the file, shortened. */
void dt_value_show(const struct cJSON *value, struct dt_text *out);
/* The part of a value that does not fit the rule, such as "entry 2 (b.bin): weight is -1". Null: the value has no
 * parts, or each part fits. The text is in the arena. */
const char *dt_value_fault(const struct dt_rule *rule, const struct cJSON *value, struct dt_arena *arena);
/* True for a known choice that is not supported yet. */
bool dt_value_is_later(const struct dt_rule *rule, const struct cJSON *value);
/* The choice that is nearest to the value, or null. Choices are in lower case. The result is in the
 * arena. */
const char *dt_value_nearest(const struct dt_rule *rule, const struct cJSON *value, struct dt_arena *arena);
/* Appends the rule's requirement: "a whole number of at least 1", "one of: a, b". */
void dt_value_expected(const struct dt_rule *rule, struct dt_text *out);

#endif
