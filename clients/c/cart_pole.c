/* CartPole with its physics here, and its learner in a bdpi server.
 *
 *   bdpi serve clients/cart_pole.yaml
 *   cc -std=c99 -O2 -Iclients/c clients/c/cart_pole.c -lm -o cart_pole && ./cart_pole 8088
 *
 * cart_pole PORT [EPISODES [MILLISECONDS]]: at most so many episodes (1000), a step each so many milliseconds (20, which
 * is real time). Prints the steps of each episode; ends when the last 20 have 195 or more on average, of at most 500.
 */
#define _POSIX_C_SOURCE 200112L
#include "bdpi_robot.h"

#include <math.h>
#include <time.h>

enum { WINDOW = 20, MOST_STEPS = 500 };

/* Position, speed, angle and angular speed; forces push the cart, with a pole of half a metre to its middle on it. */
static void push(double *state, int right) {
    const double gravity = 9.8, pole = 0.1, total = 1.1, half = 0.5, tau = 0.02;
    double force = right ? 10.0 : -10.0, sine = sin(state[2]), cosine = cos(state[2]);
    double pushed = (force + pole * half * state[3] * state[3] * sine) / total;
    double turned = (gravity * sine - cosine * pushed) / (half * (4.0 / 3.0 - pole * cosine * cosine / total));
    double moved = pushed - pole * half * turned * cosine / total;
    state[0] += tau * state[1];
    state[1] += tau * moved;
    state[2] += tau * state[3];
    state[3] += tau * turned;
}

static int fell(const double *state) {
    return fabs(state[0]) > 2.4 || fabs(state[2]) > 12 * 3.14159265358979 / 180;
}

static void look(const double *state, float *seen) {
    for (int i = 0; i < 4; i++) seen[i] = (float)state[i];
}

/* Sleep until a step is over; the clock of the next one begins then. */
static void wait_for(struct timespec *due, long milliseconds) {
    struct timespec now, left;
    due->tv_nsec += 1000000 * milliseconds;
    due->tv_sec += due->tv_nsec / 1000000000;
    due->tv_nsec %= 1000000000;
    clock_gettime(CLOCK_MONOTONIC, &now);
    left.tv_sec = due->tv_sec - now.tv_sec;
    left.tv_nsec = due->tv_nsec - now.tv_nsec;
    if (left.tv_nsec < 0) left.tv_sec--, left.tv_nsec += 1000000000;
    if (left.tv_sec < 0) *due = now; /* late */
    else nanosleep(&left, NULL);
}

/* Steps of one episode; 0: the server refuses, or is gone. */
static int episode(bdpi_robot *robot, long milliseconds) {
    double state[4];
    float seen[4];
    struct timespec due;
    int steps = 0, action;
    for (int i = 0; i < 4; i++) state[i] = 0.1 * rand() / RAND_MAX - 0.05;
    look(state, seen);
    if (bdpi_begin(robot) != 0) return 0;
    action = bdpi_act(robot, seen, 4);
    clock_gettime(CLOCK_MONOTONIC, &due);
    while (action >= 0 || action == BDPI_WAIT) {
        if (action == BDPI_WAIT) { /* stopped, paused, or waiting for a person: nothing moves */
            wait_for(&due, 100);
            action = bdpi_act(robot, seen, 4);
            continue;
        }
        push(state, action);
        look(state, seen);
        steps++;
        wait_for(&due, milliseconds);
        action = bdpi_step(robot, action, 1, seen, 4, fell(state), steps == MOST_STEPS);
    }
    return action == BDPI_ENDED ? steps : 0;
}

int main(int argc, char **argv) {
    static bdpi_robot robot;
    int last[WINDOW] = {0}, sum = 0, most = argc > 2 ? atoi(argv[2]) : 1000;
    if (argc < 2) return fprintf(stderr, "cart_pole PORT [EPISODES [MILLISECONDS]]\n"), 1;
    bdpi_open(&robot, "127.0.0.1", argv[1], "c", "");
    for (int number = 0; number < most; number++) {
        int steps = episode(&robot, argc > 3 ? atol(argv[3]) : 20);
        if (!steps) return fprintf(stderr, "%s\n", robot.text), 2;
        sum += steps - last[number % WINDOW];
        last[number % WINDOW] = steps;
        printf("%d\n", steps);
        fflush(stdout);
        if (number + 1 >= WINDOW && sum >= 195 * WINDOW) return 0;
    }
    return 3; /* not yet */
}
