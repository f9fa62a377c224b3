/* A file system without hard links, by LD_PRELOAD: exFAT, and some by FUSE or CIFS (link(2), EPERM). */
#include <errno.h>

static int refused(void) {
    errno = EPERM;
    return -1;
}

int link(const char *from, const char *to) {
    (void)from, (void)to;
    return refused();
}

int linkat(int at, const char *from, int to_at, const char *to, int flags) {
    (void)at, (void)from, (void)to_at, (void)to, (void)flags;
    return refused();
}
