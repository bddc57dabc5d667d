/* 30 steps of a lamp, in episodes of ten; rewards count the steps. */
#define _POSIX_C_SOURCE 200112L
#include "bdpi_robot.h"

int main(int argc, char **argv) {
    bdpi_robot robot;
    float seen[2] = {0, 0};
    int step = 0;
    if (argc < 2) return 1;
    bdpi_open(&robot, "127.0.0.1", argv[1], "c", "");
    robot.picture = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAIAAAA2iEnWAAAAEElEQVR4nGP4z8AARAwQCgAf7gP9i18U1AAAAABJRU5ErkJggg==";
    while (step < 30) {
        if (bdpi_begin(&robot) != 0) return 2;
        int action = bdpi_act(&robot, seen, 2);
        while (action >= 0) {
            seen[1] = (float)action;
            action = bdpi_step(&robot, action, (float)step, seen, 2, 0, step % 10 == 9);
            step++;
        }
        if (action != BDPI_ENDED) return 3;
    }
    if (bdpi_act(&robot, seen, 1) != BDPI_REFUSED || !strstr(robot.text, "has 1 numbers")) return 4;
    seen[1] = strtof("-inf", NULL); /* a broken sensor */
    return bdpi_act(&robot, seen, 2) == BDPI_REFUSED && strstr(robot.text, "observation.1 is nan") ? 0 : 5;
}
