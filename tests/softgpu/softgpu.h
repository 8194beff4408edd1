/* What tests ask of the software GPU. C and C++.
 *
 * Variables: SOFTGPU_ORDER (schedule of threads: 0, 1, 2+), SOFTGPU_SEED, SOFTGPU_DELAY_US
 * (lateness of streams), SOFTGPU_MEMORY_MB, SOFTGPU_DEVICES (0: none), SOFTGPU_PEERS (0: they do
 * not reach each other's memory), SOFTGPU_SM (multiprocessors), SOFTGPU_CAPABILITY (90: compute
 * capability 9.0), SOFTGPU_DRIVER (its version, as 12080), SOFTGPU_ALIAS (1: streams reach
 * registered host memory at addresses of their own), SOFTGPU_LOST_COPY (bytes: a copy of so many
 * to the host finds the device broken), SOFTGPU_FORGET_WAITS (1: streams wait for no event, as
 * in a program that forgot to let them), SOFTGPU_CUDNN (cudnn.cc), SOFTGPU_SETUPS (a file: the
 * names of calls that belong before the first step, runtime.h). */
#ifndef DT_TESTS_SOFTGPU_SOFTGPU_H
#define DT_TESTS_SOFTGPU_SOFTGPU_H

#ifdef __cplusplus
extern "C" {
#endif

/* Exit code of a process whose kernel or stream program made a mistake, or which ended with 0
 * and left memory, streams or events behind; one line on stderr says which. */
#define SOFTGPU_EXIT 86

/* Streams of this process stop before entries whose name contains `name` (a kernel's name,
 * "copy", "set", "host function", "record", "wait") until softgpu_go_on; the name is not copied.
 * softgpu_held: 1 when one stands there. */
void softgpu_hold(const char *name);
int softgpu_held(void);
void softgpu_go_on(void);

/* Graphs that cuDNN was asked to execute in this process. */
int softgpu_dnn_executions(void);

#ifdef __cplusplus
}
#endif
#endif
