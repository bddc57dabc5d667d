/* A robot that learns from a bdpi server. C99 and POSIX sockets, no allocation; copy this file.
 *
 *   bdpi_robot robot;
 *   bdpi_open(&robot, "127.0.0.1", "8088", "arm-1", "");
 *   bdpi_begin(&robot);
 *   int action = bdpi_act(&robot, seen, 4);
 *   while (action >= 0 || action == BDPI_WAIT) {
 *       if (action == BDPI_WAIT) { sleep(1); action = bdpi_act(&robot, seen, 4); continue; }
 *       reward = move(action, seen, &terminated, &truncated);
 *       action = bdpi_step(&robot, action, reward, seen, 4, terminated, truncated);
 *   }
 *
 * Results: an action from 0 on; BDPI_ENDED: begin the next episode; BDPI_WAIT: stand still, then bdpi_act again;
 * BDPI_REFUSED, BDPI_LOST (no answer for robot.patience seconds): robot.text says why.
 * robot.picture, a small JPEG or PNG in base64, goes with the next act or step, and the page shows it.
 * Before the first include: #define _POSIX_C_SOURCE 200112L
 */
#ifndef BDPI_ROBOT_H
#define BDPI_ROBOT_H

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { BDPI_ENDED = -1, BDPI_WAIT = -2, BDPI_REFUSED = -3, BDPI_LOST = -4 };

typedef struct {
    char host[64], port[8], name[65], token[100];
    long seq;
    int patience;        /* seconds */
    const char *picture; /* of a camera; NULL: none */
    char request[4096];  /* the body */
    char text[8192];     /* the answer, or what is wrong */
} bdpi_robot;

static inline void bdpi_open(bdpi_robot *robot, const char *host, const char *port, const char *name, const char *token) {
    memset(robot, 0, sizeof *robot);
    snprintf(robot->host, sizeof robot->host, "%s", host);
    snprintf(robot->port, sizeof robot->port, "%s", port);
    snprintf(robot->name, sizeof robot->name, "%s", name);
    snprintf(robot->token, sizeof robot->token, "%s", token);
    robot->patience = 60;
}

static inline int bdpi_write(int line, const char *text, size_t length) {
    while (length) {
        ssize_t n = send(line, text, length, MSG_NOSIGNAL);
        if (n <= 0) return 0;
        text += n;
        length -= (size_t)n;
    }
    return 1;
}

/* One connection, one request. Returns the status of HTTP, 0 where there is no whole answer; its body is in robot->text.
 * seconds: how long to wait for the server each time */
static inline int bdpi_try(bdpi_robot *robot, const char *kind, long seconds) {
    struct addrinfo hints, *found = NULL;
    struct timeval limit = {seconds, 0};
    const char *picture = strcmp(kind, "episodes") ? robot->picture : NULL, *before = ",\"picture\":\"", *after = "\"}";
    char head[512];
    size_t got = 0, length = strlen(robot->request), more = 0;
    ssize_t n;
    int status = 0, line;
    if (picture) {
        length -= 1; /* of its last brace */
        more = strlen(before) + strlen(picture) + strlen(after);
    }
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(robot->host, robot->port, &hints, &found) != 0) return 0;
    line = socket(found->ai_family, found->ai_socktype, found->ai_protocol);
    if (line >= 0) {
        setsockopt(line, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(line, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        snprintf(head, sizeof head,
                 "POST /v1/%s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n%s%s%sConnection: close\r\n"
                 "Content-Length: %lu\r\n\r\n",
                 kind, robot->host, robot->port, robot->token[0] ? "Authorization: Bearer " : "", robot->token,
                 robot->token[0] ? "\r\n" : "", (unsigned long)(length + more));
        if (connect(line, found->ai_addr, found->ai_addrlen) == 0 &&
            bdpi_write(line, head, strlen(head)) && bdpi_write(line, robot->request, length) &&
            (!picture || (bdpi_write(line, before, strlen(before)) && bdpi_write(line, picture, strlen(picture)) &&
                          bdpi_write(line, after, strlen(after))))) {
            while (got < sizeof robot->text - 1 && (n = recv(line, robot->text + got, sizeof robot->text - 1 - got, 0)) > 0)
                got += (size_t)n;
            robot->text[got] = 0;
            char *body = strstr(robot->text, "\r\n\r\n");
            if (body && got && robot->text[got - 1] == '}' && sscanf(robot->text, "HTTP/1.%*d %d", &status) == 1)
                memmove(robot->text, body + 4, strlen(body + 4) + 1);
        }
        close(line);
    }
    freeaddrinfo(found);
    return status;
}

/* Seconds, of a clock that is never set. */
static inline long bdpi_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec;
}

/* A request without an answer is repeated as it was: the server does not store it twice. */
static inline int bdpi_post(bdpi_robot *robot, const char *kind) {
    struct timeval pause;
    long end = bdpi_now() + robot->patience;
    for (long left = robot->patience; left >= 0; left = end - bdpi_now()) {
        int status = bdpi_try(robot, kind, left < 1 ? 1 : left > 10 ? 10 : left);
        if (status && strcmp(kind, "episodes")) robot->picture = NULL;
        if (status == 200) {
            const char *seq = strstr(robot->text, "\"seq\":"), *action = strstr(robot->text, "\"action\":");
            if (seq) robot->seq = strtol(seq + 6, NULL, 10);
            if (strstr(robot->text, "\"status\":\"ended\"")) return BDPI_ENDED;
            if (!action) return 0;
            return action[9] == 'n' ? BDPI_WAIT : (int)strtol(action + 9, NULL, 10);
        }
        if (status) return BDPI_REFUSED;
        pause.tv_sec = 0;
        pause.tv_usec = 50000;
        select(0, NULL, NULL, NULL, &pause);
    }
    snprintf(robot->text, sizeof robot->text, "no answer from %s:%s for %d seconds", robot->host, robot->port, robot->patience);
    return BDPI_LOST;
}

/* A number in JSON. What is not finite becomes NaN, which the server refuses by the name of its field. */
static inline const char *bdpi_number(char digits[32], double value) {
    if (value - value != 0) return "NaN";
    snprintf(digits, 32, "%.9g", value);
    return digits;
}

/* Append numbers; returns the new length, or 0 where they do not fit. */
static inline size_t bdpi_numbers(bdpi_robot *robot, size_t length, const float *values, int n) {
    char digits[32];
    for (int i = 0; i < n && length; i++) {
        size_t room = sizeof robot->request - length;
        int written = snprintf(robot->request + length, room, "%s%s", i ? "," : "", bdpi_number(digits, values[i]));
        length = written < 0 || (size_t)written >= room ? 0 : length + (size_t)written;
    }
    return length + 3 < sizeof robot->request ? length : 0;
}

static inline int bdpi_send(bdpi_robot *robot, const char *kind, size_t length, const float *values, int n) {
    length = bdpi_numbers(robot, length, values, n);
    if (!length) {
        snprintf(robot->text, sizeof robot->text, "%d numbers are too many", n);
        return BDPI_REFUSED;
    }
    memcpy(robot->request + length, "]}", 3);
    return bdpi_post(robot, kind);
}

static inline int bdpi_begin(bdpi_robot *robot) {
    snprintf(robot->request, sizeof robot->request, "{\"robot\":\"%s\"}", robot->name);
    return bdpi_post(robot, "episodes");
}

static inline int bdpi_act(bdpi_robot *robot, const float *seen, int n) {
    int length = snprintf(robot->request, sizeof robot->request, "{\"robot\":\"%s\",\"seq\":%ld,\"observation\":[",
                          robot->name, robot->seq + 1);
    return bdpi_send(robot, "act", (size_t)length, seen, n);
}

static inline int bdpi_step(bdpi_robot *robot, int executed, float reward, const float *seen, int n, int terminated,
                            int truncated) {
    char digits[32];
    int length = snprintf(robot->request, sizeof robot->request,
                          "{\"robot\":\"%s\",\"seq\":%ld,\"executed_action\":%d,\"reward\":%s,\"terminated\":%s,"
                          "\"truncated\":%s,\"next_observation\":[",
                          robot->name, robot->seq + 1, executed, bdpi_number(digits, reward), terminated ? "true" : "false",
                          truncated ? "true" : "false");
    return bdpi_send(robot, "step", (size_t)length, seen, n);
}

#endif
