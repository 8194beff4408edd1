/* base/error.c with every sentence reworded, for programs that are to do the same with other words:
 * letters become capitals, and what a program might look for (blanks, colons, brackets, digits)
 * becomes something else. Done twice, nothing more changes. */
#include "base/error.h"
#include "base/text.h"
#include "tests/reworded/reword.h"

#define dt_text_make_visible reword
#include "base/error.c"
