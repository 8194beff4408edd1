/* A folder for one test. */
#ifndef DT_TESTS_LIB_FOLDER_H
#define DT_TESTS_LIB_FOLDER_H

/* Fixtures of cmocka, for a group or for each test. Between them `folder` names a new empty folder
 * below $TMPDIR, or below /tmp if $TMPDIR leaves no room for the name of a socket. folder_teardown
 * removes the folder with its contents. A failure is reported on stderr and fails the test. */
extern char folder[64];
int folder_setup(void **state);
int folder_teardown(void **state);

#endif
