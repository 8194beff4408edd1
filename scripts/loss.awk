# The course of the loss in a run's metrics.jsonl, as text and, with -v svg=FILE, as a picture. `.` training, `v` evaluation.
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
    if (x > last) last = x
}
{
    step = number("step")
    if (number("loss") != "") add(step, number("loss"), ".")
    if (number("val_loss") != "") add(step, number("val_loss"), "v")
}
function line(mark, colour,    i, points) {
    for (i = 1; i <= n; i++)
        if (marks[i] == mark) points = points sprintf("%.1f,%.1f ", 50 + 530 * xs[i] / last, 280 - 260 * (ys[i] - low) / (high - low))
    if (points != "") print "<polyline fill=\"none\" stroke=\"" colour "\" stroke-width=\"2\" points=\"" points "\"/>" >svg
}
END {
    if (n < 2 || last == 0 || high == low) exit
    rows = 10; columns = 64
    for (i = 1; i <= n; i++) {
        r = int((high - ys[i]) / (high - low) * (rows - 1) + 0.5)
        c = int(xs[i] / last * (columns - 1) + 0.5)
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
    printf "        0%*s\n", columns - 1, last " steps"
    if (svg == "") exit
    print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 600 320\" font-family=\"sans-serif\" font-size=\"12\">" >svg
    print "<rect width=\"600\" height=\"320\" fill=\"white\"/><path d=\"M50 20V280H580\" fill=\"none\" stroke=\"black\"/>" >svg
    for (i = 0; i <= 4; i++)
        printf "<text x=\"44\" y=\"%d\" text-anchor=\"end\">%.2f</text>\n", 284 - 65 * i, low + (high - low) * i / 4 >svg
    printf "<text x=\"50\" y=\"298\">0</text><text x=\"580\" y=\"298\" text-anchor=\"end\">%d steps</text>\n", last >svg
    print "<text x=\"570\" y=\"30\" text-anchor=\"end\" fill=\"#1f77b4\">training loss</text><text x=\"570\" y=\"46\" text-anchor=\"end\" fill=\"#d62728\">held-out loss</text>" >svg
    line(".", "#1f77b4")
    line("v", "#d62728")
    print "</svg>" >svg
}
