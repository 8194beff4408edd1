/* Words of job files of PyTorch scripts, in sections that are those of a job here. */
#include "worker/job/dialects/dialect.h"

#define NUMBERS "the numbers are in metrics.jsonl, and with logging.csv in a table"

static const struct dialect_rule rules[] = {
    MOVE("training.model_name", "model.name"),
    MOVE("training.max_length", "data.sequence_length"),
    WORDS("training.use_amp", "training.precision", "true=16-mixed|false="),
    WORDS("use_amp", "training.precision", "true=16-mixed|false="),
    INERT("distributed.backend", "training.device and training.collectives say how ranks talk"),
    MOVE("distributed.find_unused_parameters", "ddp.find_unused_parameters"),
    MOVE("distributed.gradient_as_bucket_view", "ddp.gradient_as_bucket_view"),
    MOVE("distributed.static_graph", "ddp.static_graph"),
    MOVE("distributed.bucket_cap_mb", "ddp.bucket_cap_mb"),
    MOVE("distributed.broadcast_buffers", "training.broadcast_buffers"),
    SILENT("checkpointing.full_state", "checkpoints hold all state, and model/ is whole"),
    WORDS("logging.use_tensorboard", NULL, "false=|true=~" NUMBERS),
    WORDS("logging.use_wandb", NULL, "false=|true=~" NUMBERS),
    {0},
};

static const char *const places[] = {"", NULL};

const struct dialect dialect_script = {.name = "PyTorch script", .places = places, .rules = rules};
