/* Checks that no other user may exchange a part of a path, except root and the owners and groups of
 * its folders. A path is resolved again at each use, so a user who exchanges a part decides where
 * files are written and removed. All parts are checked, also those that links lead through. */
#include "base/file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS 40 /* the kernel follows as many */

/* True if the user trusts everybody who may write to the folders. */
static bool trusts_all(void)
{
    const char *trust = getenv("DTRUN_TRUST_FOLDERS");
    return trust != NULL && strcmp(trust, "1") == 0;
}

/* Checks one part of a path. `part` is its path in `folder`, null if it is the last one or does not
 * exist. above: stat of `folder`. st: stat of `part`. */
static int check_part(const char *folder, const struct stat *above, const char *part, const struct stat *st,
                      struct dt_error *err)
{
    if ((above->st_mode & S_IWOTH) == 0) {
        return 0;
    }
    bool foreign = part != NULL && st->st_uid != geteuid() && st->st_uid != 0;
    if (!foreign && (above->st_mode & S_ISVTX) != 0) {
        return 0;
    }
    if (trusts_all()) {
        return 0;
    }
    if (foreign) {
        char *chown = geteuid() == 0 ? dt_format(", run: chown 0 %s", part) : dt_strdup("");
        int rc = dt_fail(err, DT_INVALID,
                         "%s: belongs to user %u, and anybody could have put it into %s; choose another folder%s, or "
                         "set DTRUN_TRUST_FOLDERS=1 where this user is trusted",
                         part, (unsigned)st->st_uid, folder, chown);
        free(chown);
        return rc;
    }
    return dt_fail(err, DT_INVALID,
                   "%s: anybody may write to it (mode %04o), and so exchange what lies in it; choose another folder, "
                   "run: chmod o-w %s, or set DTRUN_TRUST_FOLDERS=1 where all users are trusted",
                   folder, (unsigned)above->st_mode & 07777, folder);
}

/* Removes the first part from *rest and returns it; empty: there is none. */
static char *take_part(struct dt_text *rest)
{
    const char *p = dt_text_str(rest);
    p += strspn(p, "/");
    char *part = dt_format("%.*s", (int)strcspn(p, "/"), p), *left = dt_strdup(p + strlen(part));
    dt_text_reset(rest);
    dt_text_puts(rest, left);
    free(left);
    return part;
}

/* Puts the target of a link before *rest. False: the link cannot be read. */
static bool follow(const char *link, char **at, struct dt_text *rest)
{
    char target[PATH_MAX];
    ssize_t size = readlink(link, target, sizeof target);
    if (size <= 0 || size == (ssize_t)sizeof target) {
        return false;
    }
    char *left = dt_strdup(dt_text_str(rest));
    dt_text_reset(rest);
    dt_text_add(rest, target, (size_t)size);
    dt_text_puts(rest, left);
    free(left);
    if (target[0] == '/') {
        (*at)[1] = '\0';
    }
    return true;
}

/* Walks along `rest` from the folder *at, whose own path has no links. */
static int walk(char **at, struct dt_text *rest, struct dt_error *err)
{
    struct stat above, st;
    int rc = 0, links = 0;
    for (bool more = true; more && rc == 0;) {
        char *part = take_part(rest), *next = dt_format("%s/%s", strcmp(*at, "/") == 0 ? "" : *at, part);
        bool there = part[0] != '\0' && lstat(next, &st) == 0;
        if (strcmp(part, "..") == 0) {
            dt_file_strip(*at);
        } else if (strcmp(part, ".") != 0) {
            more = there && stat(*at, &above) == 0;
            rc = more || stat(*at, &above) == 0 ? check_part(*at, &above, there ? next : NULL, &st, err) : 0;
            if (more && S_ISLNK(st.st_mode)) {
                more = ++links <= LINKS && follow(next, at, rest);
            } else if (more) {
                char *before = *at;
                *at = next;
                next = before;
                more = S_ISDIR(st.st_mode);
            }
        }
        free(part);
        free(next);
    }
    return rc;
}

int dt_file_check_owner(const char *path, struct dt_error *err)
{
    char cwd[PATH_MAX], *at = dt_strdup("/");
    struct dt_text rest;
    int rc = 0;
    dt_text_init(&rest);
    if (path[0] == '/') {
        dt_text_puts(&rest, path);
    } else if (getcwd(cwd, sizeof cwd) != NULL) {
        dt_text_printf(&rest, "%s/%s", cwd, path);
    }
    /* if the working folder is gone, nothing can be created in it */
    rc = rest.size > 0 ? walk(&at, &rest, err) : 0;
    dt_text_clear(&rest);
    free(at);
    return rc;
}
