/* PPM and PGM: P5 and P6 with binary samples, P2 and P3 with samples as text. */
#include "worker/data/images/image.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 65535, BYTE = 255 };

struct reader {
    const uint8_t *at, *end;
    int64_t width, height, most; /* most: the value that stands for white */
    int channels;
    bool text;
};

static bool is_space(uint8_t c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* The next whole number of at most `most`, behind blanks and comments; -1: there is none. */
static int64_t number(struct reader *r, int64_t most)
{
    while (r->at < r->end && (is_space(*r->at) || *r->at == '#')) {
        if (*r->at == '#') {
            const uint8_t *line = memchr(r->at, '\n', (size_t)(r->end - r->at));
            r->at = line != NULL ? line : r->end;
        } else {
            r->at++;
        }
    }
    int64_t value = -1;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
        value = (value < 0 ? 0 : value) * 10 + (*r->at++ - '0');
        if (value > most) {
            return -1;
        }
    }
    return value;
}

static int open_reader(struct reader *r, const void *bytes, size_t size, struct dt_error *err)
{
    const uint8_t *b = bytes;
    *r = (struct reader){
        .at = b + 2, .end = b + size, .text = b[1] <= '3', .channels = b[1] == '3' || b[1] == '6' ? 3 : 1};
    r->width = number(r, INT32_MAX);
    r->height = number(r, INT32_MAX);
    r->most = number(r, MOST);
    if (r->width < 0 || r->height < 0 || r->most < 1) {
        return dt_fail(err, DT_INVALID, "damaged P%c: no width, height and largest value (1 to 65535) in its header",
                       b[1]);
    }
    if (r->at == r->end || !is_space(*r->at++)) {
        return dt_fail(err, DT_INVALID, "damaged P%c: no blank behind the header", b[1]);
    }
    return image_check_size(r->width, r->height, err);
}

/* A sample in 255 steps, rounded to even as Python's round() does; -1: it is larger than the header
 * says. */
static int step_of(const struct reader *r, int64_t value)
{
    if (value < 0 || value > r->most) {
        return -1;
    }
    return r->most == BYTE ? (int)value : (int)nearbyint((double)value / (double)r->most * BYTE);
}

static int64_t next_sample(struct reader *r)
{
    if (r->text) {
        return number(r, MOST);
    }
    int64_t value = *r->at++;
    return r->most > BYTE ? value << 8 | *r->at++ : value;
}

/* One row of samples, in bytes. */
static int read_row(struct reader *r, uint8_t *out, struct dt_error *err)
{
    for (int64_t i = 0; i < r->width * r->channels; i++) {
        int step = step_of(r, next_sample(r));
        if (step < 0) {
            return dt_fail(err, DT_INVALID, "damaged PPM or PGM: a sample is missing or larger than its header says");
        }
        out[i] = (uint8_t)step;
    }
    return 0;
}

int pnm_decode(const void *bytes, size_t size, int channels, struct image *out, struct dt_error *err)
{
    struct reader r;
    if (open_reader(&r, bytes, size, err) != 0) {
        return -1;
    }
    /* in text a sample takes a digit and a blank */
    int64_t samples = r.width * r.height * r.channels, have = r.end - r.at;
    if (have < (r.text ? 2 * samples - 1 : samples * (r.most > BYTE ? 2 : 1))) {
        return dt_fail(err, DT_INVALID, "damaged PPM or PGM: the file is cut off");
    }
    image_shape(out, r.width, r.height, channels);
    if (!r.text && r.most == BYTE) {
        image_convert(r.at, r.channels, out->pixels, channels, r.width * r.height);
        return 0;
    }
    uint8_t *line = malloc((size_t)(r.width * r.channels));
    int rc = line != NULL ? 0 : dt_fail(err, DT_NO_MEMORY, "no memory for a row of the image");
    for (int64_t y = 0; rc == 0 && y < r.height; y++) {
        rc = read_row(&r, line, err);
        if (rc == 0) {
            image_convert(line, r.channels, out->pixels + y * r.width * channels, channels, r.width);
        }
    }
    free(line);
    return rc;
}

int pnm_measure(const void *bytes, size_t size, int64_t *width, int64_t *height, struct dt_error *err)
{
    struct reader r;
    if (open_reader(&r, bytes, size, err) != 0) {
        return -1;
    }
    *width = r.width;
    *height = r.height;
    return 0;
}
