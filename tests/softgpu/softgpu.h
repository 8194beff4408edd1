/* The software GPU as tests see it. C and C++. Environment variables:
 *   SOFTGPU_ORDER         schedule of threads: 0, 1, 2+ (executor.cc)
 *   SOFTGPU_SEED          seed of random schedules and delays
 *   SOFTGPU_DELAY_US      longest delay of a stream's entries
 *   SOFTGPU_MEMORY_MB     memory of a device
 *   SOFTGPU_DEVICES       number of devices; 0: none
 *   SOFTGPU_PEERS         0: devices do not reach each other's memory
 *   SOFTGPU_SM            number of multiprocessors
 *   SOFTGPU_CAPABILITY    90: compute capability 9.0
 *   SOFTGPU_DRIVER        version of the driver, as 12080
 *   SOFTGPU_ALIAS         1: streams see registered host memory at other addresses (words.cc)
 *   SOFTGPU_LOST_COPY     bytes: a copy to the host of so many or more finds the device broken
 *   SOFTGPU_FORGET_WAITS  1: streams wait for no event, as in a program without event waits
 *   SOFTGPU_CUDNN         cudnn.cc
 *   SOFTGPU_SETUPS        a file that gets the names of calls that belong before the first step
 *                         (runtime.h) */
#ifndef DT_TESTS_SOFTGPU_SOFTGPU_H
#define DT_TESTS_SOFTGPU_SOFTGPU_H

#ifdef __cplusplus
extern "C" {
#endif

/* Exit code of a process whose kernel or stream program made a mistake, or that ended with 0 and
 * left memory, streams or events behind. One line on stderr describes the mistake. */
#define SOFTGPU_EXIT 86

/* Makes streams of this process stop before entries whose name contains `name` (a kernel's name,
 * "copy", "set", "host function", "record", "wait") until softgpu_go_on. The string is not copied.
 * softgpu_held returns 1 while a stream is stopped there. */
void softgpu_hold(const char *name);
int softgpu_held(void);
void softgpu_go_on(void);

/* Number of graphs that cuDNN executed in this process. */
int softgpu_dnn_executions(void);

#ifdef __cplusplus
}
#endif
#endif
