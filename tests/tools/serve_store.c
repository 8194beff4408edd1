/* A store server alone: serve_store [HOST [PORT]] prints its port, serves until stdin ends, then
 * prints its statistics. A line "reset" on stdin begins a new round, a line "stats" prints the
 * statistics. */
#include "base/log.h"
#include "launcher/query/numbers.h"
#include "launcher/store/store_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct store_server *server;
static uv_pipe_t input;
static char buffer[4096];

static void print_stats(void)
{
    struct dt_text t;
    dt_text_init(&t);
    numbers_store_json(server, &t);
    printf("%s\n", dt_text_str(&t));
    (void)fflush(stdout);
    dt_text_clear(&t);
}

static void on_alloc(uv_handle_t *handle, size_t size, uv_buf_t *buf)
{
    (void)handle;
    (void)size;
    *buf = uv_buf_init(buffer, sizeof buffer - 1);
}

static void on_input(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    if (size < 0) {
        uv_close((uv_handle_t *)stream, NULL);
        store_server_close(server, NULL, NULL);
        return;
    }
    buf->base[size] = '\0';
    if (strncmp(buf->base, "reset", 5) == 0) {
        store_server_reset(server);
        printf("reset\n");
        (void)fflush(stdout);
    } else if (strncmp(buf->base, "stats", 5) == 0) {
        print_stats();
    }
}

int main(int argc, char **argv)
{
    struct dt_error err = {0};
    uv_loop_t *loop = uv_default_loop();
    struct store_server_options o = {.host = argc > 1 ? argv[1] : "127.0.0.1", .port = argc > 2 ? atoi(argv[2]) : 0};
    dt_log_open(DT_LOG_WARN, -1, 2);
    if (store_server_open(&server, loop, &o, &err) != 0) {
        (void)fprintf(stderr, "serve_store: %s\n", err.text);
        return 1;
    }
    printf("%d\n", store_server_port(server));
    (void)fflush(stdout);
    (void)uv_pipe_init(loop, &input, 0);
    if (uv_pipe_open(&input, 0) != 0 || uv_read_start((uv_stream_t *)&input, on_alloc, on_input) != 0) {
        (void)fprintf(stderr, "serve_store: stdin must be a pipe\n");
        return 1;
    }
    (void)uv_run(loop, UV_RUN_DEFAULT);
    return uv_loop_close(loop) == 0 ? 0 : 1;
}
