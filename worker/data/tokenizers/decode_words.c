/* Replaced words. */
#include "worker/data/tokenizers/decode_words.h"

#include <string.h>

void words_replace(struct dt_text *out, const char *text, size_t size, const char *from, const char *to)
{
    size_t n = strlen(from);
    while (n > 0 && size > 0) {
        const char *found = memmem(text, size, from, n);
        if (found == NULL) {
            break;
        }
        dt_text_add(out, text, (size_t)(found - text));
        dt_text_puts(out, to);
        size -= (size_t)(found - text) + n;
        text = found + n;
    }
    dt_text_add(out, text, size);
}

void words_clean_up(struct dt_text *t)
{
    static const char *const words[][2] = {
        {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},    {" n't", "n't"},
        {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (memmem(dt_text_str(t), t->size, words[i][0], strlen(words[i][0])) == NULL) {
            continue;
        }
        struct dt_text made;
        dt_text_init(&made);
        words_replace(&made, t->data, t->size, words[i][0], words[i][1]);
        dt_text_clear(t);
        *t = made;
    }
}
