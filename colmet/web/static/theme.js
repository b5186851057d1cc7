"use strict";
// Set the colours of the last choice, before the first paint.
try {
  const theme = localStorage.getItem("colmet-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // the browser stores nothing: the system's colours
}
