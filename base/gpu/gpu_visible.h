/* The GPUs that CUDA_VISIBLE_DEVICES lets a program see, without asking the driver. As in CUDA, the
 * list ends at the first entry that names no GPU, and is empty if a GPU is named twice. */
#ifndef DT_BASE_GPU_GPU_VISIBLE_H
#define DT_BASE_GPU_GPU_VISIBLE_H

#define DT_GPU_VISIBLE_MAX 256

struct dt_gpu_visible {
    int count;
    int gpu[DT_GPU_VISIBLE_MAX]; /* number of each GPU; -1: unknown, or a part of a GPU */
    /* the mistake in the list: "7 is no GPU of this host, which has 0 to 3"; "": none */
    char problem[256];
};

/* text: the variable's value; null: not set, so all GPUs are visible. uuids: "GPU-..." of each of
 * the host's `count` GPUs, in its order. Null: the host was not asked; then count is -1, and every
 * number counts as a GPU. Entries are numbers, "GPU-..." (or its beginning) or "MIG-...". */
void dt_gpu_visible(const char *text, const char *const *uuids, int count, struct dt_gpu_visible *out);

#endif
