/* Chat templates: programs in the part of Jinja that they use. What is rendered is what jinja2 3.1 renders
 * with trim_blocks and lstrip_blocks, as transformers sets it up; a construct that is not computed is refused
 * with its line and name. The work of a rendering is bounded. */
#ifndef DT_WORKER_DATA_TEMPLATES_TEMPLATE_H
#define DT_WORKER_DATA_TEMPLATES_TEMPLATE_H

#include "base/error.h"
#include "base/text.h"

#include <time.h>

struct cJSON;
struct template;

/* Reads a template, which need not be kept. name: for errors, "NAME:LINE: cause". DT_INVALID: it is no
 * template, is larger than 1 MiB, or uses what is not computed. */
int template_open(struct template **out, const char *name, const char *text, size_t size, struct dt_error *err);
/* Finds the template of a tokenizer, as transformers does: chat_template.jinja beside the tokenizer.json at
 * `path` (or in that folder), otherwise chat_template of tokenizer_config.json, a text or a list with one
 * named "default". DT_NOT_FOUND: there is none. */
int template_find(struct template **out, const char *path, struct dt_error *err);
/* Appends what the template makes of its variables, an object whose texts are UTF-8. now: the day and time
 * that strftime_now shows. DT_INVALID: the template raised an exception, with its words; what it does has an error
 * ("a" < 1), or it does too much: more than 10^7 steps, 16 MiB of output, 100 calls deep. */
int template_render(const struct template *t, const struct cJSON *variables, const struct tm *now, struct dt_text *out,
                    struct dt_error *err);
void template_close(struct template *t); /* null is allowed */

#endif
