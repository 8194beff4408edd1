/* Fields described as JSON Schema. */
#include "base/config_own.h"
#include "base/config_value.h"

#include <inttypes.h>
#include <string.h>

static void schema_range(const struct dt_rule *rule, struct dt_text *out)
{
    dt_text_puts(out, rule->open_min ? ", \"exclusiveMinimum\": " : ", \"minimum\": ");
    config_add_double(rule->min, out);
    dt_text_puts(out, rule->open_max ? ", \"exclusiveMaximum\": " : ", \"maximum\": ");
    config_add_double(rule->max, out);
}

/* Appends "type" and the limits. Numbers and bools that have a default also allow the string
 * "auto". */
static void schema_type(const struct dt_field *f, struct dt_text *out)
{
    const struct dt_rule *rule = f->rule;
    const char *null = rule->null ? ", \"null\"" : "", *word = f->fallback != NULL ? ", \"string\"" : "",
               *object = rule->object ? ", \"object\"" : "";
    switch (rule->type) {
    case DT_RULE_BOOL:
    case DT_RULE_INTEGER:
    case DT_RULE_NUMBER:
        dt_text_printf(out, "\"type\": [\"%s\"%s%s%s]",
                       rule->type == DT_RULE_BOOL      ? "boolean"
                       : rule->type == DT_RULE_INTEGER ? "integer"
                                                       : "number",
                       null, word, object);
        dt_text_puts(out, *word != 0 ? ", \"pattern\": \"^auto$\"" : "");
        if (rule->type != DT_RULE_BOOL) {
            schema_range(rule, out);
        }
        break;
    case DT_RULE_STRING:
        dt_text_printf(out, "\"type\": [\"string\"%s], \"minLength\": 1", null);
        break;
    case DT_RULE_KINDS:
        dt_text_printf(out, "\"type\": [\"array\"%s], \"maxItems\": %d, \"items\": {\"enum\": [", null, DT_KINDS_MAX);
        for (const char *p = rule->choices; *p != 0; p += *p == '|') {
            dt_text_puts(out, p == rule->choices ? "" : ", ");
            config_add_choice(p, out);
            p += strcspn(p, "|");
        }
        dt_text_puts(out, "]}");
        break;
    case DT_RULE_NAMES:
        dt_text_printf(out, "\"type\": [\"array\", \"string\"%s], \"items\": {\"type\": \"string\"}", null);
        break;
    case DT_RULE_STRINGS:
        dt_text_printf(out,
                       "\"type\": [\"array\", \"string\"%s], \"minLength\": 1, \"minItems\": 1, \"maxItems\": %d, "
                       "\"items\": {\"type\": \"string\", \"minLength\": 1}",
                       null, DT_STRINGS_MAX);
        break;
    case DT_RULE_OBJECTS:
        dt_text_printf(out, "\"type\": [\"array\"%s], \"minItems\": 1, \"items\": {\"type\": \"object\"}", null);
        break;
    case DT_RULE_SOURCES:
        dt_text_printf(out,
                       "\"type\": [\"array\", \"string\"%s], \"minLength\": 1, \"minItems\": 1, \"maxItems\": %d, "
                       "\"items\": {\"type\": \"object\", \"required\": [\"path\", \"weight\"], "
                       "\"additionalProperties\": false, \"properties\": {\"path\": {\"type\": \"string\", "
                       "\"minLength\": 1}, \"weight\": {\"type\": \"number\", \"exclusiveMinimum\": 0, "
                       "\"maximum\": 1000000000}}}",
                       null, DT_SOURCES_MAX);
        break;
    case DT_RULE_SETS:
        config_schema_sets(rule, out);
        break;
    case DT_RULE_NUMBERS: {
        const char *type = rule->whole ? "integer" : "number";
        dt_text_printf(out, "\"type\": [\"array\", \"%s\"%s]", type, null);
        schema_range(rule, out);
        dt_text_printf(out, ", \"minItems\": 1, \"maxItems\": %d, \"items\": {\"type\": \"%s\"", DT_NUMBERS_MAX, type);
        schema_range(rule, out);
        dt_text_puts(out, "}");
        break;
    }
    case DT_RULE_INTEGERS:
        dt_text_printf(out, "\"type\": %s, \"minItems\": 1, \"maxItems\": %d, \"items\": {\"type\": \"integer\"",
                       rule->null ? "[\"array\", \"null\"]" : "\"array\"", DT_INTEGERS_MAX);
        schema_range(rule, out);
        dt_text_puts(out, "}");
        break;
    case DT_RULE_PAIR:
        dt_text_printf(
            out, "\"type\": [\"array\"%s%s]%s, \"minItems\": 2, \"maxItems\": 2, \"items\": {\"type\": \"integer\"",
            null, word, *word != 0 ? ", \"pattern\": \"^auto$\"" : "");
        schema_range(rule, out);
        dt_text_puts(out, "}");
        break;
    case DT_RULE_CHOICE:
    case DT_RULE_ENUM:
        dt_text_puts(out, rule->open ? "\"type\": \"string\", \"examples\": [" : "\"enum\": [");
        for (const char *p = rule->choices; *p != 0;) {
            size_t n = strcspn(p, "|");
            dt_text_puts(out, p == rule->choices ? "" : ", ");
            config_add_choice(p, out);
            if (rule->type == DT_RULE_CHOICE && strspn(p, "0123456789") == n) {
                dt_text_printf(out, ", %.*s", (int)n, p);
            }
            p += n + (p[n] == '|');
        }
        dt_text_puts(out, rule->null ? ", null]" : "]");
        break;
    }
}

void dt_config_schema(const struct dt_field *fields, int indent, struct dt_text *out)
{
    for (const struct dt_field *f = fields; f->key != NULL; f++) {
        dt_text_printf(out, "%s%*s\"%s\": {", f == fields ? "" : ",\n", indent, "", f->key);
        schema_type(f, out);
        if (f->fallback != NULL) {
            dt_text_printf(out, ", \"default\": %s", f->fallback);
        }
        dt_text_puts(out, ", \"description\": ");
        dt_text_json(out, f->help, strlen(f->help));
        dt_text_puts(out, "}");
    }
    dt_text_puts(out, "\n");
}
