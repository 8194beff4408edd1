# The course of the loss in a run's metrics.jsonl, as text and, with -v svg=FILE, as a picture. `.` training, `v` evaluation.
# A logged loss is that of one step, so each mark of training is the mean of what was logged in a 32nd of the run.
#   awk -f scripts/loss.awk -v svg=runs/demo/loss.svg runs/demo/metrics.jsonl
function number(key,    at) {
    at = match($0, "\"" key "\": *-?[0-9][0-9.eE+-]*")
    return at ? substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3) + 0 : ""
}
function add(x, y, mark) {
    n++
    xs[n] = x; ys[n] = y; marks[n] = mark
    if (n == 1 || y < low) low = y
    if (n == 1 || y > high) high = y
}
# A logged step, which may be logged again after a restart.
function train(x, y) {
    part = int((x - 1) * 32 / final)
    if (part != open) shut()
    open = part
    count++; sum_x += x; sum_y += y
}
function shut() {
    if (count > 0) add(sum_x / count, sum_y / count, ".")
    count = sum_x = sum_y = 0
}
{
    step = number("step")
    steps[NR] = step; losses[NR] = number("loss"); helds[NR] = number("val_loss")
    if (step > final) final = step
}
function line(mark, colour,    i, points) {
    for (i = 1; i <= n; i++)
        if (marks[i] == mark) points = points sprintf("%.1f,%.1f ", 50 + 530 * xs[i] / final, 280 - 260 * (ys[i] - low) / (high - low))
    if (points != "") print "<polyline fill=\"none\" stroke=\"" colour "\" stroke-width=\"2\" points=\"" points "\"/>" >svg
}
END {
    for (i = 1; i <= NR && final > 0; i++)
        if (losses[i] != "") train(steps[i], losses[i])
    shut()
    for (i = 1; i <= NR; i++)
        if (helds[i] != "") add(steps[i], helds[i], "v")
    if (n < 2 || final == 0 || high == low) exit
    rows = 10; columns = 64
    for (i = 1; i <= n; i++) {
        r = int((high - ys[i]) / (high - low) * (rows - 1) + 0.5)
        c = int(xs[i] / final * (columns - 1) + 0.5)
        if (grid[r, c] != "v") grid[r, c] = marks[i]
    }
    for (r = 0; r < rows; r++) {
        text = sprintf("%6.2f |", high - (high - low) * r / (rows - 1))
        for (c = 0; c < columns; c++) text = text ((r, c) in grid ? grid[r, c] : " ")
        sub(/ +$/, "", text)
        print text
    }
    rule = "       +"
    for (c = 0; c < columns; c++) rule = rule "-"
    print rule
    printf "        0%*s\n", columns - 1, final " steps"
    print "        . loss of training, means   v loss of what is held out"
    if (svg == "") exit
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 600 320\" font-family=\"sans-serif\" font-size=\"12\">" >svg
    print "<rect width=\"600\" height=\"320\" fill=\"white\"/><path d=\"M50 20V280H580\" fill=\"none\" stroke=\"black\"/>" >svg
    for (i = 0; i <= 4; i++)
        printf "<text x=\"44\" y=\"%d\" text-anchor=\"end\">%.2f</text>\n", 284 - 65 * i, low + (high - low) * i / 4 >svg
    printf "<text x=\"50\" y=\"298\">0</text><text x=\"580\" y=\"298\" text-anchor=\"end\">%d steps</text>\n", final >svg
    print "<text x=\"570\" y=\"30\" text-anchor=\"end\" fill=\"#1f77b4\">training loss</text><text x=\"570\" y=\"46\" text-anchor=\"end\" fill=\"#d62728\">held-out loss</text>" >svg
    line(".", "#1f77b4")
    line("v", "#d62728")
    print "</svg>" >svg
}
