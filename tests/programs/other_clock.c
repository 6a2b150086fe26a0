/* Preloaded: the wall clock of a process is SHIFT_S seconds ahead of the kernel's.

   What waits until a moment of the wall clock is given the kernel's moment for it, so that no wait
   takes another time than it should. How long the machine has been up is left to a time namespace. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define LEAST_WALL_S 1000000000 /* no machine has been up for 30 years */

static int is_wall(clockid_t clock) {
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && is_wall(clock)) now->tv_sec += SHIFT_S;
    return failed;
}

int timespec_get(struct timespec *now, int base) {
    return clock_gettime(CLOCK_REALTIME, now) ? 0 : base;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    if (clock_gettime(CLOCK_REALTIME, &exact)) return -1;
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}

static struct timespec kernels(const struct timespec *moment, clockid_t *clock) {
    struct timespec found = *moment;
    *clock = moment->tv_sec > LEAST_WALL_S ? CLOCK_REALTIME : CLOCK_MONOTONIC;
    if (*clock == CLOCK_REALTIME) found.tv_sec -= SHIFT_S;
    return found;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
                           const struct timespec *until) {
    clockid_t clock;
    struct timespec moment = kernels(until, &clock);
    return pthread_cond_clockwait(condition, lock, clock, &moment);
}

int pthread_mutex_timedlock(pthread_mutex_t *lock, const struct timespec *until) {
    clockid_t clock;
    struct timespec moment = kernels(until, &clock);
    return pthread_mutex_clocklock(lock, CLOCK_REALTIME, &moment);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    clockid_t clock;
    struct timespec moment = kernels(until, &clock);
    return sem_clockwait(semaphore, CLOCK_REALTIME, &moment);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *wanted,
                    struct timespec *left) {
    struct timespec moment = *wanted;
    if ((flags & TIMER_ABSTIME) && is_wall(clock)) moment.tv_sec -= SHIFT_S;
    return syscall(SYS_clock_nanosleep, clock, flags, &moment, left) ? errno : 0;
}
