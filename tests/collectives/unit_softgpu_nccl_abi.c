/* covers: collectives/nccl_abi.h collectives/nccl_load.c */
/* What collectives/nccl_abi.h says of NCCL is what its header says where one is installed, and
 * the library that is installed is found with all its functions. */
#include "collectives/nccl_load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

#if __has_include(<nccl.h>)
#include <nccl.h>

#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #ours " is " #theirs)
SAME(NCCL_SUCCESS, ncclSuccess);
SAME(NCCL_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_U8, ncclUint8);
SAME(NCCL_I32, ncclInt32);
SAME(NCCL_I64, ncclInt64);
SAME(NCCL_F16, ncclFloat16);
SAME(NCCL_F32, ncclFloat32);
SAME(NCCL_F64, ncclFloat64);
SAME(NCCL_BF16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(NCCL_MAX, ncclMax);
SAME(NCCL_MIN, ncclMin);
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));
#if NCCL_VERSION_CODE >= 22800
SAME(NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME(NCCL_NO_COLOR, NCCL_SPLIT_NOCOLOR);
SAME(NCCL_SYMMETRIC, NCCL_WIN_COLL_SYMMETRIC);
SAME(NCCL_CTA_EFFICIENCY, NCCL_CTA_POLICY_EFFICIENCY);
SAME(NCCL_CTA_ZERO, NCCL_CTA_POLICY_ZERO);
#define SAME_PLACE(ours, theirs) SAME(offsetof(struct nccl_config, ours), offsetof(ncclConfig_t, theirs))
SAME_PLACE(magic, magic);
SAME_PLACE(version, version);
SAME_PLACE(blocking, blocking);
SAME_PLACE(cluster_size, cgaClusterSize);
SAME_PLACE(least_ctas, minCTAs);
SAME_PLACE(most_ctas, maxCTAs);
SAME_PLACE(net_name, netName);
SAME_PLACE(split_share, splitShare);
SAME_PLACE(traffic_class, trafficClass);
SAME_PLACE(name, commName);
SAME_PLACE(collnet, collnetEnable);
SAME_PLACE(cta_policy, CTAPolicy);
SAME_PLACE(shrink_share, shrinkShare);
SAME_PLACE(nvls_ctas, nvlsCTAs);
SAME_PLACE(channels_per_net_peer, nChannelsPerNetPeer);
SAME_PLACE(nvlink_centric, nvlinkCentricSched);
#endif
#if NCCL_VERSION_CODE >= 22800 && NCCL_VERSION_CODE < 22900
SAME(sizeof(struct nccl_config), sizeof(ncclConfig_t)); /* later ones have more behind it */
#endif

static void an_empty_config_is_the_headers(void **unused)
{
    (void)unused;
#if NCCL_VERSION_CODE >= 22800 && NCCL_VERSION_CODE < 22900
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    struct nccl_config ours = NCCL_CONFIG;
    theirs.version = ours.version; /* they say the patch, too */
    assert_memory_equal(&ours, &theirs, sizeof ours);
#else
    skip();
#endif
}
#else
static void an_empty_config_is_the_headers(void **unused)
{
    (void)unused;
    skip();
}
#endif

static void the_installed_library_is_found(void **unused)
{
    (void)unused;
    struct dt_error err = {0};
    (void)unsetenv("DTRUN_NCCL");
    const struct dt_nccl *n = dt_nccl_load(&err);
    if (n == NULL) {
        assert_int_equal(err.status, DT_NOT_FOUND);
        assert_non_null(strstr(err.text, "DTRUN_NCCL"));
        (void)printf("skip: %s\n", err.text);
        skip();
    }
    int version = 0;
    assert_int_equal(n->get_version(&version), NCCL_SUCCESS);
    assert_int_equal(version, n->version);
    assert_non_null(strstr(n->path, "libnccl.so"));
    char number[32];
    (void)snprintf(number, sizeof number, "%d.%d.%d", version / 10000, version % 10000 / 100, version % 100);
    assert_string_equal(n->number, number);
    assert_true(version < 21800 || n->split != NULL);
    assert_true((version >= 22907) == ((dt_nccl_features(n) & DT_NCCL_WINDOWS) != 0));
    assert_true(version < 22807 || (n->revoke != NULL && (dt_nccl_features(n) & DT_NCCL_ZERO_CTAS) != 0));
    assert_string_equal(n->error_string(NCCL_SUCCESS), "no error");
    assert_ptr_equal(dt_nccl_load(&err), n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_empty_config_is_the_headers),
                                       cmocka_unit_test(the_installed_library_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
