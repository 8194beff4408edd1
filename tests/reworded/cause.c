/* launcher/output/cause.c with every sentence reworded (error.c beside it). */
#include "launcher/output/cause.h"
#include "tests/reworded/reword.h"

#define cause_add_what plain_add_what
#define cause_add_line plain_add_line
void plain_add_what(const struct cause *c, struct dt_text *out);
void plain_add_line(const struct cause *c, struct dt_text *out);
#include "launcher/output/cause.c"
#undef cause_add_what
#undef cause_add_line

/* What was added to the text. */
static void reword_from(struct dt_text *out, size_t before)
{
    reword(out->data != NULL ? out->data + before : NULL, out->size - before + 1);
}

void cause_add_what(const struct cause *c, struct dt_text *out)
{
    size_t before = out->size;
    plain_add_what(c, out);
    reword_from(out, before);
}

void cause_add_line(const struct cause *c, struct dt_text *out)
{
    size_t before = out->size;
    plain_add_line(c, out);
    reword_from(out, before);
}
