/* A folder of a test's own. */
#ifndef DT_TESTS_LIB_FOLDER_H
#define DT_TESTS_LIB_FOLDER_H

/* Fixtures of cmocka, for a group or for each test: between them `folder` names a new empty
 * folder below $TMPDIR, or below /tmp where that leaves no room for the name of a socket;
 * folder_teardown removes it with all that is in it. What cannot be done is said on stderr and
 * fails the test. */
extern char folder[64];
int folder_setup(void **state);
int folder_teardown(void **state);

#endif
