/* What every device keeps of kernels/device.h, as cases for the tests of each. */
#ifndef DT_TESTS_LIB_DEVICE_CASES_H
#define DT_TESTS_LIB_DEVICE_CASES_H

#include "kernels/device.h"

#define DEVICE_CASE_LONG_S 60.0

struct device_case {
    const char *device;
    enum dt_streams streams;
};

void device_case_open(struct dt_device *d, const struct device_case *c);

void device_case_order(const struct device_case *c);
void device_case_failure_travels(const struct device_case *c);
void device_case_failures_stay_apart(const struct device_case *c);
void device_case_memory(const struct device_case *c);
void device_case_guard(const struct device_case *c);
/* Of kernels/timer.h. */
void device_case_timer(const struct device_case *c);
/* For streams that run beside the host. */
void device_case_event_orders_streams(const struct device_case *c);

#endif
