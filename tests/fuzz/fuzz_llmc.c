/* The header of llm.c's models: any bytes, with the size of the file that they came from, and with the
 * size that the header means. An accepted header has sizes of a model; one with such sizes is
 * accepted. */
#include "driver.h"

#include "worker/checkpoints/llmc.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static int64_t file_bytes_of(const struct llmc_header *h)
{
    int64_t c = h->channels, size = h->type == DT_F32 ? 4 : 2;
    return 1024 + size * ((h->padded + h->positions + 2) * c + h->layers * (12 * c * c + 13 * c));
}

static bool is_model(const int32_t *w)
{
    static const int32_t most[] = {1 << 22, 1 << 24, 10000, 10000, 1 << 20, 1 << 25};
    for (int i = 0; i < 6; i++) {
        if (w[2 + i] < 1 || w[2 + i] > most[i]) {
            return false;
        }
    }
    return w[0] == 20240326 && (w[1] == 3 || w[1] == 5) && w[7] >= w[3] && w[6] % w[5] == 0;
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct llmc_header h;
    struct dt_error err;
    if (llmc_read_header(data, size, (int64_t)size, &h, &err) == 0 && file_bytes_of(&h) != (int64_t)size) {
        abort();
    }
    if (size < LLMC_HEADER_BYTES) {
        return 0;
    }
    int32_t words[8];
    memcpy(words, data, sizeof words);
    struct llmc_header meant = {.positions = words[2],
                                .vocabulary = words[3],
                                .layers = words[4],
                                .heads = words[5],
                                .channels = words[6],
                                .padded = words[7],
                                .type = words[1] == 3 ? DT_F32 : DT_BF16};
    bool good = is_model(words);
    int64_t bytes = good ? file_bytes_of(&meant) : (int64_t)size;
    if ((llmc_read_header(data, size, bytes, &h, &err) == 0) != good) {
        abort();
    }
    if (good && (h.padded != meant.padded || h.layers != meant.layers || h.type != meant.type ||
                 llmc_read_header(data, size, bytes - 1, &h, &err) == 0)) {
        abort();
    }
    return 0;
}
