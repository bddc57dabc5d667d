// The page of a report: curves from the JSON in it, which work from a disk, and a button for the theme.
"use strict";
(() => {
  for (const row of JSON.parse(document.getElementById("data").textContent).rows) new Row(row, document.getElementById(row.id));

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.style.colorScheme
      ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.style.colorScheme = dark ? "light" : "dark";
  });
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
    for (const films of document.querySelectorAll("details.moving")) films.open = false;
  }
})();
