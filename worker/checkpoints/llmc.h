/* GPT-2 from the model files of llm.c: a header of 256 int32 (magic 20240326, version 3 or 5, sizes),
 * then 16 tensors of F32 (version 3) or BF16 (version 5), of which each holds all layers. Maps are
 * stored (out, in), and the token embedding has rows of padding at its end. Numbers are
 * little-endian. */
#ifndef DT_WORKER_CHECKPOINTS_LLMC_H
#define DT_WORKER_CHECKPOINTS_LLMC_H

#include "base/dtype.h"
#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { LLMC_HEADER_BYTES = 1024 };

struct llmc_header {
    int64_t positions, vocabulary, layers, heads, channels;
    int64_t padded; /* rows of the token embedding */
    enum dt_dtype type;
};

/* Reads the header of a file of file_bytes bytes, of which `bytes` are the first `size`. DT_INVALID: it is
 * another file, has sizes that no model can have, or is shorter or longer than its header says. */
int llmc_read_header(const void *bytes, size_t size, int64_t file_bytes, struct llmc_header *out, struct dt_error *err);
/* Writes FOLDER/model.safetensors and then FOLDER/config.json, as Hugging Face's library has them, with
 * weights of the file's type; replaces files of these names. Needs memory for one map of a layer. */
int llmc_import(const char *path, const char *folder, struct dt_error *err);

#endif
