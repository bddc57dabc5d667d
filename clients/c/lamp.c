/* A lamp that learns to be on at night, in the shape of an Arduino's program: setup() once, then loop() again and again.
 *
 *   bdpi serve clients/lamp.yaml
 *   cc -std=c99 -O2 -Iclients/c clients/c/lamp.c -o lamp && ./lamp 8088
 *
 * lamp PORT [MILLISECONDS]: a step each so many milliseconds (20). Ends when the lamp was right in 95 of the last 100 steps.
 */
#define _POSIX_C_SOURCE 200112L
#include "bdpi_robot.h"

#include <time.h>

enum { EPISODE = 20, WINDOW = 100, ENOUGH = 95, MOST = 5000 };

static bdpi_robot robot;
static int action = BDPI_ENDED; /* what the server said last; no episode has begun */
static float seen[2];           /* night, lamp: what sensors say */
static int steps, was_right[WINDOW], right;

static void setup(const char *port) {
    bdpi_open(&robot, "127.0.0.1", port, "lamp-1", "");
}

static void loop(void) {
    if (action == BDPI_ENDED) { /* the next episode */
        if (bdpi_begin(&robot) != 0) action = BDPI_REFUSED;
        else action = bdpi_act(&robot, seen, 2);
    } else if (action == BDPI_WAIT) { /* stopped, paused, or waiting for a person: leave the lamp as it is */
        action = bdpi_act(&robot, seen, 2);
    } else {
        int reward = action == (int)seen[0];
        right += reward - was_right[steps % WINDOW];
        was_right[steps % WINDOW] = reward;
        seen[1] = (float)action;             /* switch it */
        seen[0] = (float)(rand() / 7 % 2);   /* night falls, or not */
        steps++;
        action = bdpi_step(&robot, action, (float)reward, seen, 2, 0, steps % EPISODE == 0);
    }
}

int main(int argc, char **argv) {
    struct timespec pause = {0, 1000000 * (argc > 2 ? atol(argv[2]) : 20)};
    if (argc < 2) return fprintf(stderr, "lamp PORT [MILLISECONDS]\n"), 1;
    for (setup(argv[1]); steps < MOST; nanosleep(&pause, NULL)) {
        loop();
        if (action == BDPI_REFUSED || action == BDPI_LOST) return fprintf(stderr, "%s\n", robot.text), 2;
        if (steps >= WINDOW && right >= ENOUGH) return printf("learned in %d steps\n", steps), 0;
    }
    return 3; /* not yet */
}
