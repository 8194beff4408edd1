/* The upper tail of the normal distribution, one formula for CPU and GPU. For a in [0, 14], the
 * probability of more than a is exp(-a^2 / 2) * t * p(t), where t = 1 / (1 + DT_NORMAL_STEP * a).
 * The relative error of t * p(t) is 3e-8. */
#ifndef DT_KERNELS_NORMAL_H
#define DT_KERNELS_NORMAL_H

#define DT_NORMAL_MOST 14.0F
#define DT_NORMAL_STEP 0.27F
#define DT_NORMAL_DENSITY 0.3989422804F /* 1 / sqrt(2 pi) */

/* p(t) by Horner's rule. number(c) makes a constant, fma(a, b, c) is a * b + c. */
#define DT_NORMAL_TAIL(t, number, fma) fma(DT_NORMAL_TAIL_HIGH(t, number, fma), t, number(0.107722093F))
#define DT_NORMAL_TAIL_HIGH(t, number, fma)                                                                            \
    fma(fma(fma(fma(fma(fma(fma(number(0.0291071082F), t, number(-0.12724212F)), t, number(0.171444687F)), t,          \
                        number(-0.071213917F)),                                                                        \
                    t, number(0.109277206F)),                                                                          \
                t, number(0.0714060625F)),                                                                             \
            t, number(0.101980367F)),                                                                                  \
        t, number(0.107518603F))

#endif
