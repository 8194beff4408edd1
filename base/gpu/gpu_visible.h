/* The GPUs that CUDA_VISIBLE_DEVICES lets a program see, found without asking the driver. As in
 * CUDA, the list ends at the first entry that names no GPU, and is empty when one GPU is named
 * twice. */
#ifndef DT_BASE_GPU_GPU_VISIBLE_H
#define DT_BASE_GPU_GPU_VISIBLE_H

#define DT_GPU_VISIBLE_MAX 256

struct dt_gpu_visible {
    int count;
    int gpu[DT_GPU_VISIBLE_MAX]; /* number of each; -1: not known, or a part of a GPU */
    char problem[256];           /* what is wrong with the list: "7 is no GPU of this host, which
                                  * has 0 to 3"; "" nothing */
};

/* text: the variable's value, or null where it is not set (then all are seen). uuids: (count)
 * "GPU-..." of each GPU of the host, in its order; null when the host was not asked, count then
 * is -1 and every number counts as a GPU. Entries are numbers, "GPU-..." (or its beginning) or
 * "MIG-...". */
void dt_gpu_visible(const char *text, const char *const *uuids, int count, struct dt_gpu_visible *out);

#endif
