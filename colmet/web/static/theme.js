"use strict";
// Before anything is painted: the colours that were chosen last time.
try {
  const theme = localStorage.getItem("colmet-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // a browser that keeps nothing: the system's colours
}
