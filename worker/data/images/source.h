/* The data formats of images, for the table of formats. */
#ifndef DT_WORKER_DATA_IMAGES_SOURCE_H
#define DT_WORKER_DATA_IMAGES_SOURCE_H

#include "worker/data/data.h"

extern const struct data_ops data_imagefolder, data_idx, data_cifar10, data_cifar100;

#endif
