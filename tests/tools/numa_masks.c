/* Prints the masks that numa_mask finds below a root: numa_masks ROOT MODE ALLOWED ADDRESS...
 * prints a line per device, "0-3,8" or "error: why". An ADDRESS "-" stands for a rank without a
 * device. */
#include "launcher/workers/numa.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    struct dt_error err;
    struct numa n = {.device_count = argc - 4};
    struct cpus mask;
    if (argc < 5 || numa_mode_of(argv[2], &n.mode) != 0 || cpus_parse(&n.allowed, argv[3], &err) != 0) {
        (void)fprintf(stderr, "usage: numa_masks ROOT MODE ALLOWED ADDRESS...\n");
        return 2;
    }
    int *nodes = dt_alloc((size_t)n.device_count * sizeof *nodes), result = 0;
    n.sys = argv[1];
    n.nodes = nodes;
    if (strcmp(argv[4], "-") == 0) {
        result = numa_spread(n.sys, &n.allowed, n.device_count, nodes, &err);
    }
    for (int i = 0; i < n.device_count && result == 0 && strcmp(argv[4], "-") != 0; i++) {
        result = numa_node_of(n.sys, argv[4 + i], &nodes[i], &err);
    }
    for (int i = 0; i < n.device_count; i++) {
        struct dt_text text;
        dt_text_init(&text);
        if (result == 0 && numa_mask(&n, i, &mask, &err) == 0) {
            cpus_print(&mask, &text);
        } else {
            dt_text_printf(&text, "error: %s", err.text);
        }
        printf("%s\n", dt_text_str(&text));
        dt_text_clear(&text);
    }
    free(nodes);
    return 0;
}
