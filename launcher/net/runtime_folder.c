#include "launcher/net/runtime_folder.h"

#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

char *runtime_folder(int index)
{
    const char *own = getenv("DTRUN_RUNTIME_DIR"), *session = getenv("XDG_RUNTIME_DIR");
    if (own != NULL && own[0] != '\0') {
        return index == 0 ? dt_strdup(own) : NULL;
    }
    bool has_session = session != NULL && session[0] == '/';
    if (index == 0 && has_session) {
        return dt_format("%s/dtrun", session);
    }
    return index == (has_session ? 1 : 0) ? dt_format("/tmp/dtrun-%u", (unsigned)geteuid()) : NULL;
}

int runtime_folder_check(const char *path, bool make, struct dt_error *err)
{
    struct stat st;
    size_t limit = sizeof((struct sockaddr_un *)0)->sun_path - sizeof "/new-" RUNTIME_FOLDER_SOCKET;
    if (strlen(path) > limit) {
        return dt_fail(err, DT_INVALID,
                       "%s: %zu bytes are too many for the folder of a socket, at most %zu; set DTRUN_RUNTIME_DIR to a "
                       "shorter one",
                       path, strlen(path), limit);
    }
    if (make && mkdir(path, 0700) != 0 && errno != EEXIST) {
        return dt_fail_errno(err, "%s: cannot make the folder", path);
    }
    if (lstat(path, &st) != 0) {
        return dt_fail_errno(err, "%s", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        return dt_fail(err, DT_INVALID, "%s: is no folder", path);
    }
    if (st.st_uid != geteuid() || (st.st_mode & 077) != 0) {
        return dt_fail(err, DT_INVALID, "%s: belongs to user %u, mode %03o; must be ours alone (0700)", path,
                       (unsigned)st.st_uid, (unsigned)st.st_mode & 0777);
    }
    return 0;
}
