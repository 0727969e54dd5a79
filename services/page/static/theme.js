// Before anything is drawn, so that nothing flashes in the wrong colours.
(() => {
  const chosen = localStorage.getItem("millrace.theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
